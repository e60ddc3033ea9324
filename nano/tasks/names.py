"""Lists of names and things that stories are made of; `Ctx.of` takes the part of a split."""

PEOPLE = """Adam Agnes Alan Alba Alice Amara Amir Ana Andre Anita Anton Aria Arthur Asha Astrid Ava Bella Ben Bianca Boris Bruno
Carla Carlos Cecil Chen Chloe Clara Colin Dana Daniel Daria David Diana Dilan Dora Edgar Edith Elena Eli Elsa Emil Emma Eric
Esther Eva Fatima Felix Fiona Flora Frank Freya George Gina Grace Greta Hana Hans Harry Hassan Hector Helen Henry Hugo Ian Ida
Igor Ines Irene Isaac Ivan Ivy Jack James Jana Jasper Jean Jonas Joy Judith Julia Karim Karl Kate Kenji Kim Klara Kofi Lara Laura
Lea Leo Leila Lena Liam Lily Linda Lola Louis Lucas Lucy Luis Maja Malik Mara Marco Maria Marta Max Maya Mei Mila Milan Mina Mira
Mona Nadia Nana Nelly Nico Nina Noah Nora Olga Oliver Omar Oscar Otto Pablo Paula Pavel Pedro Petra Pia Priya Quinn Rahul Raj
Ravi Rita Rosa Ruth Sam Sana Sara Sasha Selma Simon Sofia Sonia Stella Sven Tara Teo Theo Tina Tom Uma Vera Victor Viola Walter
Wendy Yara Yusuf Zara Zoe""".split()

SURNAMES = """Abbott Adler Almeida Barker Becker Bell Benson Blake Boyd Brandt Brooks Byrne Carver Castro Chandra Cole Costa Crane
Cruz Dalton Diaz Dixon Doyle Duarte Eaton Ellis Farrow Fischer Flynn Foster Fuentes Garner Gibson Grant Greer Hale Hansen Hardy
Hayes Holt Hughes Ito Jensen Kane Keller Khan Kumar Lane Larsen Lowe Marsh Mendes Meyer Mills Moreau Nash Novak Olsen Ortiz Park
Patel Perez Price Quist Ramos Reed Reyes Rossi Ruiz Sato Shah Silva Sloan Stone Tanaka Vance Vargas Vega Voss Ward Weber Wolfe Yates""".split()

CITIES = """Amsterdam Antwerp Athens Auckland Austin Baltimore Barcelona Basel Beirut Belfast Bergen Berlin Bilbao Bogota Bologna Bordeaux
Boston Bremen Bristol Brussels Bucharest Budapest Cairo Calgary Cardiff Casablanca Chicago Cologne Copenhagen Dakar Dallas Delhi Denver
Detroit Dresden Dubai Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Houston
Istanbul Jakarta Karachi Kyoto Lagos Leeds Leipzig Lille Lima Lisbon Liverpool London Lyon Madrid Malaga Manchester Manila Marseille
Melbourne Miami Milan Montreal Moscow Mumbai Munich Nairobi Nantes Naples Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Porto
Prague Quito Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville Shanghai Sheffield Sofia Stockholm Sydney Tallinn Tokyo
Toronto Toulouse Turin Valencia Venice Vienna Vilnius Warsaw York Zagreb Zurich""".split()

_A = "Ar Bel Cor Dun El Fal Gor Hal Il Jor Kel Lor Mar Nor Or Pel Quel Ror Sel Tor Ul Vel Wen Yor Zan Bran Crel Drom Fen Glim".split()
_B = "a an da den dor e en fa gan i il in ka la len lo ma mi na nor o on ra ri ro sa ta tha ti vi".split()
_C = "bia burg dale den don fell ford gard ham hold ia land lia loch mere mont mouth nia port rath ria stad stead ton vale via ville wick wold".split()
INVENTED = sorted({a + b + c for i, a in enumerate(_A) for j, b in enumerate(_B) for k, c in enumerate(_C) if (i * 7 + j * 5 + k * 3) % 6 == 0})

FRUIT = "apple apricot banana cherry date fig grape kiwi lemon lime mango melon nectarine orange papaya peach pear pineapple plum quince raspberry strawberry".split()
ANIMALS = "ant bat bear bee camel cat cow crab deer dog dolphin duck eagle fox frog goat goose hawk horse lion lizard monkey moose mouse otter owl panda pig rabbit raven seal shark sheep snake spider swan tiger toad wolf zebra".split()
COLOURS = "amber beige black blue bronze brown coral crimson cyan gold green grey indigo ivory lilac magenta maroon navy olive orange pink purple red rust silver tan teal violet white yellow".split()
TOOLS = "anvil axe brush chisel clamp drill file hammer ladder lever level mallet nail pliers pulley ratchet ruler saw screw shovel spade tape torch trowel vice wrench".split()
THINGS = FRUIT + ANIMALS + TOOLS + """basket bell book bottle box button candle carpet clock coin cup desk door engine feather flag flute
garden glass glove hat island jar jewel kettle key lake lamp letter map mirror mountain needle note oven paper pencil pillow plate pocket
radio ribbon ring river rocket rope sand scarf shell ship shirt soap sofa spoon stone stove sugar table ticket train umbrella vase wagon wall
watch wheel window wire yarn""".split()
