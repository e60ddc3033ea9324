"""The invented functions of the tool domain: names by split, typed parameters, requests that name every argument."""

from .names import CITIES, COLOURS, PEOPLE, SURNAMES, THINGS

LANGS = "Arabic Chinese Czech Danish Dutch English Finnish French German Greek Hindi Hungarian Italian Japanese Korean Norwegian Polish Portuguese Romanian Russian Spanish Swedish Thai Turkish Ukrainian".split()
MONEY = "USD EUR GBP JPY CHF CAD AUD SEK NOK DKK PLN CZK INR BRL MXN ZAR KRW TRY".split()
GENRES = "jazz rock pop folk classical techno blues country reggae opera ambient metal funk soul".split()
ROOMS = ["kitchen", "bedroom", "living room", "bathroom", "office", "garage", "hallway", "attic", "cellar", "nursery", "dining room", "laundry room"]
DISHES = "pizza soup curry salad pasta risotto stew pie tacos noodles omelette lasagne dumplings paella ramen goulash".split()
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")


def slot(c, kind):
    """(JSON value, wording in the request) of one argument."""
    if kind == "city":
        v = c.of(CITIES)
    elif kind == "person":
        v = c.of(PEOPLE)
    elif kind == "fullname":
        v = f"{c.of(PEOPLE)} {c.of(SURNAMES)}"
    elif kind == "email":
        v = f"{c.of(PEOPLE).lower()}.{c.of(SURNAMES).lower()}@example.{c.choice(('com', 'org', 'net'))}"
    elif kind == "thing":
        v = c.of(THINGS)
    elif kind == "things":
        v = c.some(THINGS, c.int(2, 4))
        return v, ", ".join(v[:-1]) + " and " + v[-1]
    elif kind == "topic":
        v = f"{c.of(COLOURS)} {c.of(THINGS)}"
    elif kind == "lang":
        v = c.of(LANGS)
    elif kind == "money":
        v = c.choice(MONEY)
    elif kind == "genre":
        v = c.choice(GENRES)
    elif kind == "room":
        v = c.choice(ROOMS)
    elif kind == "dish":
        v = c.choice(DISHES)
    elif kind == "colour":
        v = c.of(COLOURS)
    elif kind == "small":
        v = c.int(1, 12)
        return v, str(v)
    elif kind == "int":
        v = c.draw(lambda: (lambda x: (f"slot{x}", x))(c.int(13, 999)))
        return v, str(v)
    elif kind == "price":
        v = c.draw(lambda: (lambda x: (f"slot{x}", x))(c.int(101, 9999))) / 100
        return v, f"{v:g}"
    elif kind == "percent":
        v = c.int(1, 20) * 5
        return v, f"{v}%"
    elif kind == "temp":
        v = c.int(15, 28)
        return v, f"{v} degrees"
    elif kind == "minutes":
        v = c.int(1, 18) * 5
        return v, f"{v} minutes"
    elif kind == "days":
        v = c.int(2, 14)
        return v, f"{v} days"
    elif kind == "date":
        m, d = c.int(1, 12), c.int(1, 28)
        y = c.int(2024, 2029)
        return f"{y}-{m:02d}-{d:02d}", c.choice((f"{y}-{m:02d}-{d:02d}", f"{d} {MONTHS[m - 1]} {y}", f"{MONTHS[m - 1]} {d}, {y}"))
    elif kind == "time":
        h, m = c.int(6, 22), c.int(0, 11) * 5
        v = f"{h:02d}:{m:02d}"
    elif kind == "code":
        v = f"{c.choice('ABCDEFGHKLMNPQRST')}{c.choice('ABCDEFGHKLMNPQRST')}{c.draw(lambda: (lambda x: (f'slot{x}', x))(c.int(1000, 9999)))}"
    elif kind == "onoff":
        v = c.chance(0.5)
        return v, "on" if v else "off"
    elif kind == "host":
        v = f"{c.of(THINGS)}{c.int(1, 9)}.example.{c.choice(('com', 'net', 'org'))}"
    elif kind == "ip":
        v = f"10.{c.int(0, 255)}.{c.int(0, 255)}.{c.int(1, 254)}"
    elif kind == "ticker":
        v = "".join(c.choice("ABCDEFGHIKLMNOPRSTUVWXZ") for _ in range(c.int(3, 4)))
    elif kind == "priority":
        v = c.choice(("low", "normal", "high", "urgent"))
    elif kind == "expr":
        v = f"{slot(c, 'int')[0]} {c.choice('+-*')} {c.int(2, 99)}"
    elif kind == "path":
        v = f"/{c.choice(('home', 'data', 'tmp', 'srv'))}/{c.of(THINGS)}/{c.of(THINGS)}.{c.choice(('txt', 'csv', 'log'))}"
    elif kind == "size":
        v = c.choice(("small", "medium", "large"))
    elif kind == "unit":
        v = c.choice(("celsius", "fahrenheit"))
    else:
        raise ValueError(f"unknown slot kind {kind!r}")
    return v, v


TYPE = {"small": "integer", "int": "integer", "price": "number", "percent": "integer", "temp": "integer", "minutes": "integer", "days": "integer",
        "onoff": "boolean", "things": "array"}
ENUM = {"priority": ["low", "normal", "high", "urgent"], "size": ["small", "medium", "large"], "unit": ["celsius", "fahrenheit"]}

# (names: training..., then one each for slice, golden, week), description, [(parameter, kind, meaning)], training requests, 3 held-out requests
APIS = [
    (["get_weather", "weather_now", "fetch_weather", "current_weather"], "Get the current weather of a city.", [("city", "city", "Name of the city")],
     ["What is the weather in {city}?", "How is the weather in {city} right now?", "Is it raining in {city}?", "Weather for {city} please.", "Tell me today's weather in {city}."],
     ["What's it like outside in {city}?", "Do I need a coat in {city} today?", "Check the weather over in {city}."]),
    (["get_forecast", "weather_forecast", "forecast", "forecast_days"], "Get the weather forecast of a city for some days.", [("city", "city", "Name of the city"), ("days", "days", "Number of days")],
     ["Give me the forecast for {city} for {days}.", "What will the weather be in {city} over the next {days}?", "Forecast for {city}, {days}."],
     ["Show how the weather develops in {city} in the coming {days}.", "I travel to {city} for {days}; what is the forecast?", "For {days} ahead, what weather awaits {city}?"]),
    (["get_time", "world_clock", "local_time", "time_in_city"], "Get the current local time of a city.", [("city", "city", "Name of the city")],
     ["What time is it in {city}?", "Current time in {city}?", "Tell me the local time in {city}.", "How late is it in {city}?"],
     ["What does the clock say in {city}?", "In {city}, what time do they have now?", "Look up the time in {city}."]),
    (["convert_currency", "currency_convert", "exchange", "money_exchange"], "Convert an amount of money between currencies.", [("amount", "price", "Amount of money"), ("from", "money", "Source currency code"), ("to", "money", "Target currency code")],
     ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "What are {amount} {from} worth in {to}?", "Change {amount} {from} into {to}."],
     ["I have {amount} {from}. How many {to} is that?", "Exchange {amount} {from} for {to}.", "Give me the {to} value of {amount} {from}."]),
    (["send_email", "email_send", "mail", "compose_email"], "Send an email.", [("to", "email", "Email address"), ("subject", "topic", "Subject line")],
     ["Send an email to {to} with the subject {subject}.", "Email {to}, subject: {subject}.", "Write a mail to {to} about {subject}."],
     ["Mail {to} and put {subject} as the subject.", "Please email {to}. The subject is {subject}.", "Drop {to} a message by mail titled {subject}."]),
    (["set_alarm", "create_alarm", "alarm", "wake_me"], "Set an alarm clock.", [("time", "time", "Time as HH:MM")],
     ["Set an alarm for {time}.", "Wake me at {time}.", "Alarm at {time}, please.", "I need an alarm at {time}."],
     ["Make the alarm ring at {time}.", "I have to be up at {time}, set the alarm.", "Ring me awake at {time}."]),
    (["set_timer", "start_timer", "timer", "countdown"], "Start a timer.", [("minutes", "minutes", "Length in minutes")],
     ["Set a timer for {minutes}.", "Start a {minutes} timer.", "Timer: {minutes}.", "Count down {minutes}."],
     ["Let me know when {minutes} have passed.", "Begin a countdown of {minutes}.", "Run a timer of {minutes}."]),
    (["create_event", "add_event", "calendar_add", "schedule_event"], "Add an event to the calendar.", [("title", "topic", "Title of the event"), ("date", "date", "Date as YYYY-MM-DD"), ("time", "time", "Time as HH:MM")],
     ["Add an event {title} on {date} at {time}.", "Schedule {title} for {date} at {time}.", "Put {title} in my calendar on {date}, {time}."],
     ["Plan {title} for {date} at {time}.", "Block {date} at {time} for {title}.", "On {date} at {time} I have {title}, note it."]),
    (["add_reminder", "create_reminder", "remind", "set_reminder"], "Create a reminder.", [("text", "topic", "What to be reminded of"), ("date", "date", "Date as YYYY-MM-DD")],
     ["Remind me of {text} on {date}.", "Set a reminder for {date}: {text}.", "Create a reminder about {text} on {date}."],
     ["Don't let me forget {text} on {date}.", "On {date} I want a reminder about {text}.", "Make a reminder: {text}, {date}."]),
    (["play_music", "music_play", "play_genre", "start_music"], "Play music of a genre.", [("genre", "genre", "Music genre"), ("volume", "percent", "Volume in percent")],
     ["Play {genre} at {volume} volume.", "Put on some {genre}, volume {volume}.", "I want to hear {genre} at {volume}."],
     ["Let's have {genre} with the volume at {volume}.", "Start {genre} music, loudness {volume}.", "Give me {genre}; set it to {volume}."]),
    (["set_light", "switch_light", "light_control", "lamp_switch"], "Turn the light of a room on or off.", [("room", "room", "Name of the room"), ("on", "onoff", "true for on, false for off")],
     ["Turn {on} the light in the {room}.", "Switch the {room} light {on}.", "Lights {on} in the {room}."],
     ["I want the {room} light {on}.", "The lamp in the {room} should be {on}.", "Make it so that the {room} light is {on}."]),
    (["set_temperature", "thermostat_set", "heat_room", "room_temperature"], "Set the temperature of a room.", [("room", "room", "Name of the room"), ("degrees", "temp", "Temperature in degrees")],
     ["Set the {room} to {degrees}.", "Make the {room} {degrees}.", "Heat the {room} to {degrees}."],
     ["I would like {degrees} in the {room}.", "Bring the {room} to {degrees}.", "Let the {room} be at {degrees}."]),
    (["search_flights", "find_flights", "flight_search", "flights"], "Search flights between two cities on a date.", [("origin", "city", "City of departure"), ("destination", "city", "City of arrival"), ("date", "date", "Date as YYYY-MM-DD")],
     ["Find flights from {origin} to {destination} on {date}.", "I want to fly from {origin} to {destination} on {date}.", "Search a flight {origin} to {destination}, {date}."],
     ["On {date} I need to get from {origin} to {destination} by plane.", "Show me planes leaving {origin} for {destination} on {date}.", "Which flights go from {origin} to {destination} on {date}?"]),
    (["book_hotel", "hotel_booking", "reserve_hotel", "hotel_reserve"], "Book a hotel room.", [("city", "city", "City of the hotel"), ("check_in", "date", "First night as YYYY-MM-DD"), ("nights", "small", "Number of nights")],
     ["Book a hotel in {city} from {check_in} for {nights} nights.", "I need a hotel in {city} for {nights} nights starting {check_in}.", "Reserve {nights} nights in {city} from {check_in}."],
     ["Get me a room in {city}: arrival {check_in}, {nights} nights.", "Starting {check_in} I stay {nights} nights in {city}; book a hotel.", "Arrange a hotel for {nights} nights in {city} as of {check_in}."]),
    (["book_table", "reserve_table", "table_booking", "restaurant_reserve"], "Reserve a table in a restaurant.", [("people", "small", "Number of people"), ("time", "time", "Time as HH:MM"), ("city", "city", "City of the restaurant")],
     ["Book a table for {people} in {city} at {time}.", "Reserve a table at {time} in {city} for {people} people.", "Table for {people} at {time} in {city}, please."],
     ["We are {people} and want to eat in {city} at {time}. Reserve a table.", "Get us a table in {city}, {time}, {people} people.", "Please hold a table for {people} at {time} in {city}."]),
    (["translate", "translate_text", "translation", "translate_word"], "Translate a text into a language.", [("text", "topic", "Text to translate"), ("language", "lang", "Target language")],
     ["Translate {text} into {language}.", "How do you say {text} in {language}?", "What is {text} in {language}?", "{text} in {language}, please."],
     ["Give me the {language} for {text}.", "Put {text} into {language}.", "I need {text} translated to {language}."]),
    (["get_stock_price", "stock_price", "quote", "share_price"], "Get the price of a stock.", [("symbol", "ticker", "Ticker symbol")],
     ["What is the stock price of {symbol}?", "How is {symbol} trading?", "Price of {symbol}?", "Get me a quote for {symbol}."],
     ["What does one share of {symbol} cost?", "Look up the share price of {symbol}.", "At what price does {symbol} stand?"]),
    (["create_task", "add_task", "task_add", "new_task"], "Create a task with a priority.", [("title", "topic", "Title of the task"), ("priority", "priority", "Priority")],
     ["Create a task {title} with {priority} priority.", "Add a {priority} priority task: {title}.", "New task {title}, priority {priority}."],
     ["Put {title} on my tasks as {priority}.", "I have to do {title}; make it a {priority} task.", "Note a task called {title}; its priority is {priority}."]),
    (["track_package", "parcel_status", "track", "package_status"], "Track a parcel by its code.", [("code", "code", "Parcel code")],
     ["Where is my parcel {code}?", "Track package {code}.", "What is the status of parcel {code}?", "Has {code} been delivered?"],
     ["My parcel number is {code}; where is it?", "Find out where {code} is.", "Look up shipment {code}."]),
    (["get_order", "order_status", "lookup_order", "find_order"], "Look up an order by its number.", [("order_id", "int", "Order number")],
     ["What is the status of order {order_id}?", "Look up order {order_id}.", "Show me order {order_id}.", "Where is order number {order_id}?"],
     ["I placed order {order_id}; how is it going?", "Check on order {order_id}.", "Give me the details of order {order_id}."]),
    (["cancel_order", "order_cancel", "stop_order", "withdraw_order"], "Cancel an order by its number.", [("order_id", "int", "Order number")],
     ["Cancel order {order_id}.", "Please stop order {order_id}.", "I want to cancel my order {order_id}."],
     ["Order {order_id} is not needed any more, cancel it.", "Withdraw order {order_id}.", "Call off order {order_id}."]),
    (["order_food", "food_order", "order_dish", "order_meal"], "Order food.", [("dish", "dish", "Name of the dish"), ("quantity", "small", "How many"), ("size", "size", "Portion size")],
     ["Order {quantity} {size} {dish}.", "I would like {quantity} portions of {dish}, {size}.", "Get me {quantity} {size} portions of {dish}."],
     ["Please bring {quantity} {dish} in size {size}.", "We want {dish}: {quantity} of them, {size}.", "Make it {quantity} {size} {dish}, please."]),
    (["add_to_cart", "cart_add", "put_in_cart", "basket_add"], "Put a product into the shopping cart.", [("product", "thing", "Name of the product"), ("quantity", "small", "How many")],
     ["Add {quantity} of {product} to my cart.", "Put {quantity} x {product} in the cart.", "I want {quantity} pieces of {product} in my cart."],
     ["Place {quantity} of {product} in the basket.", "My cart should get {quantity} of {product}.", "Shopping cart: {quantity} times {product}."]),
    (["make_list", "create_list", "shopping_list", "write_list"], "Create a shopping list.", [("items", "things", "The items")],
     ["Make a shopping list with {items}.", "Create a list: {items}.", "I need to buy {items}; make a list.", "Write a list of {items}."],
     ["Put {items} on a new list.", "Start a list that holds {items}.", "A list with {items}, please."]),
    (["find_contact", "contact_lookup", "get_contact", "lookup_person"], "Find the contact details of a person.", [("name", "fullname", "Name of the person")],
     ["What is the phone number of {name}?", "Find the contact {name}.", "Look up {name} in my contacts.", "Show me the details of {name}."],
     ["How can I reach {name}?", "Get me the contact card of {name}.", "I need the number of {name}."]),
    (["call_contact", "phone_call", "dial", "start_call"], "Call a person by phone.", [("name", "fullname", "Name of the person")],
     ["Call {name}.", "Phone {name} for me.", "Please ring {name}.", "Start a call with {name}."],
     ["Get {name} on the phone.", "I want to speak with {name}, call now.", "Dial {name}, please."]),
    (["send_message", "text_message", "message", "send_text"], "Send a short message to a person.", [("name", "person", "Name of the person"), ("text", "topic", "The message")],
     ["Send {name} the message {text}.", "Text {name}: {text}.", "Tell {name} by message: {text}."],
     ["Let {name} know by text: {text}.", "Write to {name}: {text}.", "Message for {name}: {text}."]),
    (["get_route", "directions", "route", "find_route"], "Find the way between two cities.", [("start", "city", "Start"), ("end", "city", "End")],
     ["How do I drive from {start} to {end}?", "Route from {start} to {end}.", "Find the way from {start} to {end}."],
     ["I am in {start} and need to get to {end}. Which way?", "Guide me from {start} to {end}.", "Plan a drive that starts in {start} and ends in {end}."]),
    (["get_distance", "distance", "distance_between", "how_far"], "Get the distance between two cities in kilometres.", [("a", "city", "First city"), ("b", "city", "Second city")],
     ["How far is it from {a} to {b}?", "Distance between {a} and {b}?", "What is the distance from {a} to {b}?"],
     ["How many kilometres separate {a} and {b}?", "Measure the distance between {a} and {b}.", "Is it far between {a} and {b}? Give the distance."]),
    (["search_books", "find_books", "book_search", "library_search"], "Search the library by author.", [("author", "fullname", "Author"), ("limit", "small", "Most results")],
     ["Find {limit} books by {author}.", "Search for books of {author}, at most {limit}.", "Show up to {limit} books written by {author}."],
     ["Which books did {author} write? Show {limit}.", "List {limit} titles by {author}.", "Give me no more than {limit} books from {author}."]),
    (["get_news", "news_search", "headlines", "latest_news"], "Get the latest news on a topic.", [("topic", "topic", "The topic"), ("count", "small", "How many items")],
     ["Show me {count} news items about {topic}.", "Give me {count} headlines on {topic}.", "Latest {count} news on {topic}."],
     ["What has been written on {topic}? {count} items.", "I would like {count} news about {topic}.", "Bring {count} recent stories on {topic}."]),
    (["ping_host", "ping", "check_host", "host_alive"], "Check whether a host answers.", [("host", "host", "Host name"), ("count", "small", "Number of packets")],
     ["Ping {host} {count} times.", "Send {count} pings to {host}.", "Check {host} with {count} pings."],
     ["Does {host} answer? Use {count} packets.", "Try {host} with {count} packets.", "See if {host} is alive, {count} pings."]),
    (["scan_port", "check_port", "port_check", "port_open"], "Check whether a port of an address is open.", [("ip", "ip", "IP address"), ("port", "int", "Port number")],
     ["Is port {port} open on {ip}?", "Check port {port} of {ip}.", "Scan {ip} for port {port}."],
     ["See whether {ip} listens on port {port}.", "On {ip}, is {port} reachable?", "Test port {port} at {ip}."]),
    (["block_ip", "firewall_block", "deny_ip", "ban_ip"], "Block an address in the firewall.", [("ip", "ip", "IP address"), ("minutes", "minutes", "How long in minutes")],
     ["Block {ip} for {minutes}.", "Ban the address {ip} for {minutes}.", "Deny {ip} access for {minutes}."],
     ["Keep {ip} out for {minutes}.", "The address {ip} must be blocked for {minutes}.", "Shut {ip} off in the firewall, {minutes}."]),
    (["restart_service", "service_restart", "bounce_service", "relaunch"], "Restart a service on a host.", [("service", "thing", "Service name"), ("host", "host", "Host name")],
     ["Restart the service {service} on {host}.", "Please restart {service} at {host}.", "The {service} service on {host} hangs, restart it."],
     ["Bring {service} on {host} down and up again.", "On {host}, {service} needs a restart.", "Relaunch {service} running on {host}."]),
    (["create_user", "add_user", "user_add", "new_account"], "Create a user account.", [("name", "fullname", "Full name"), ("email", "email", "Email address")],
     ["Create a user {name} with the email {email}.", "Add the account {name}, {email}.", "New user: {name}, email {email}."],
     ["Set up an account for {name} ({email}).", "{name} needs an account; the mail is {email}.", "Register {name} under {email}."]),
    (["log_workout", "workout_log", "record_sets", "save_workout"], "Log a workout.", [("exercise", "thing", "Name of the exercise"), ("sets", "small", "Number of sets"), ("reps", "small", "Repetitions in each set")],
     ["Log {sets} sets of {reps} {exercise} lifts.", "Save my workout: {exercise}, {sets} sets of {reps} reps.", "I did {sets} sets of {exercise} with {reps} reps."],
     ["Note that I trained {exercise}: {sets} sets, {reps} reps.", "Record {exercise} for {sets} sets and {reps} reps.", "Today: {exercise}, {reps} reps in each of {sets} sets. Log it."]),
    (["get_heart_rate", "heart_rate", "pulse_of", "read_pulse"], "Get the heart rate of a patient.", [("patient", "fullname", "Name of the patient")],
     ["What is the heart rate of {patient}?", "Read the pulse of {patient}.", "Show the heart rate for {patient}."],
     ["How fast does the heart of {patient} beat?", "Fetch the pulse for {patient}.", "I need {patient}'s heart rate."]),
    (["book_appointment", "make_appointment", "appointment", "reserve_visit"], "Book an appointment with a therapist.", [("therapist", "person", "Name of the therapist"), ("date", "date", "Date as YYYY-MM-DD"), ("time", "time", "Time as HH:MM")],
     ["Book an appointment with {therapist} on {date} at {time}.", "I want to see {therapist} on {date} at {time}.", "Make an appointment: {therapist}, {date}, {time}."],
     ["Can I visit {therapist} at {time} on {date}? Book it.", "Reserve {date}, {time} with {therapist}.", "Get me in with {therapist} on {date} at {time}."]),
    (["calculate", "calculator", "compute", "evaluate"], "Evaluate an arithmetic expression.", [("expression", "expr", "The expression")],
     ["Use the calculator: {expression}", "Compute {expression} with the tool.", "Calculate {expression} using the function."],
     ["Let the tool work out {expression}.", "Run {expression} through the calculator.", "Have the calculator evaluate {expression}."]),
    (["generate_image", "draw_image", "make_image", "paint"], "Generate an image.", [("prompt", "topic", "What to draw"), ("width", "int", "Width in pixels")],
     ["Draw {prompt}, {width} pixels wide.", "Make an image of {prompt} with a width of {width}.", "Generate a picture of {prompt}, width {width}."],
     ["I want a picture showing {prompt}; width {width}.", "Paint {prompt} at {width} pixels.", "Image, please: {prompt}, {width} wide."]),
    (["convert_temperature", "temperature_convert", "to_unit", "temp_convert"], "Convert a temperature to a unit.", [("value", "int", "The temperature"), ("unit", "unit", "Target unit")],
     ["Convert {value} degrees to {unit}.", "What is {value} degrees in {unit}?", "{value} degrees to {unit}, please."],
     ["Express {value} degrees in {unit}.", "Give {value} degrees as {unit}.", "How much is {value} degrees when shown in {unit}?"]),
    (["read_file", "open_file", "file_read", "show_file"], "Read lines of a file.", [("path", "path", "Path of the file"), ("lines", "int", "How many lines")],
     ["Read the first {lines} lines of {path}.", "Show me {lines} lines of {path}.", "Open {path} and give {lines} lines."],
     ["Print {lines} lines from {path}.", "What do the first {lines} lines of {path} say?", "Fetch {lines} lines out of {path}."]),
    (["get_population", "population", "population_of", "count_people"], "Get the population of a city.", [("city", "city", "Name of the city")],
     ["What is the population of {city}?", "How many people live in {city}?", "Population of {city}?"],
     ["How big is {city} in inhabitants?", "Count the people of {city}.", "Look up how many inhabitants {city} has."]),
]
