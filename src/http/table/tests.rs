//! The table against values that are right, nearly right and wrong, and the schema that it is written down as.

use serde_json::{Value, json};

use super::*;

const IDS: Shape = Shape::List { of: &TOKEN, min: 1, max: 1 << 20 };
const PLACE: Name = Name { pattern: "^[a-z]+$", max: 8, says: "1 to 8 small letters" };
const TABLE: Table = Table {
    rules: &[Rule::Needs("unit", "exact", "true"), Rule::AtLeastOne(&["place", "heat"])],
    ignored: &["user"],
    unsupported: &[("audio", "no ears")],
    ..Table::new(
        "T",
        "",
        &[
            &[
                Param::new("temperature", Shape::Number { min: 0.0, max: 2.0 }, "").also("heat_of"),
                Param::new("count", Shape::Either(&[Shape::Exactly("-1"), Shape::Whole { min: 1, max: 8 }]), ""),
                Param::new("place", Shape::Name(&PLACE), ""),
                Param::new("heat", Shape::List { of: &Shape::Whole { min: 0, max: 9 }, min: 1, max: 2 }, ""),
            ],
            &[
                Param::new("exact", Shape::Bool, "").default("false"),
                Param::new("unit", Shape::Word(&["c", "k"]), ""),
                Param::new("bias", Shape::ByToken { of: &Shape::Number { min: -1.0, max: 1.0 }, max: 2 }, ""),
                Param::new("filler", Shape::Text { min: 0, max: 0 }, ""),
                Param::new("large", Shape::Whole { min: 1, max: WHOLE_MAX }, ""),
                Param::new(
                    "ids",
                    Shape::Either(&[
                        SOME_TEXT,
                        IDS,
                        Shape::List { of: &SOME_TEXT, min: 1, max: 4 },
                        Shape::List { of: &IDS, min: 1, max: 4 },
                    ]),
                    "",
                ),
                Param::new("parts", Shape::List { of: &Shape::Elsewhere("SparePart"), min: 1, max: 3 }, ""),
                Param::new("inner", Shape::Object(&[Param::new("deep", Shape::Bool, "").required()]), ""),
            ],
        ],
    )
};

fn of(mut extra: Value) -> Result<(Value, Vec<&'static str>), ApiError> {
    let map = extra.as_object_mut().unwrap();
    if !map.contains_key("heat") {
        map.insert("place".to_owned(), json!("here"));
    }
    TABLE.check(map).map(|ignored| (extra.clone(), ignored))
}

#[test]
fn what_is_good_is_brought_to_one_form() {
    for (sent, read) in [
        (json!({"count": 5.0, "temperature": null}), json!({"count": 5})),
        (json!({"count": -1.0, "heat_of": 1}), json!({"count": -1, "temperature": 1})),
        (
            json!({"exact": true, "unit": "k", "inner": {"deep": true}}),
            json!({"exact": true, "unit": "k", "inner": {"deep": true}}),
        ),
        (json!({"bias": {"0": 1, "999999999": -1}}), json!({"bias": {"0": 1, "999999999": -1}})),
    ] {
        let (mut found, _) = of(sent.clone()).unwrap_or_else(|error| panic!("{sent}: {error:?}"));
        found.as_object_mut().unwrap().shift_remove("place");
        assert_eq!(found, read, "{sent}");
    }
    assert_eq!(of(json!({"user": "x", "audio": null})).unwrap().1, ["user"]);
    assert_eq!(of(json!({"heat": [1e0, 2]})).unwrap().0, json!({"heat": [1, 2]}));
}

#[test]
fn what_is_wrong_is_named_with_what_is_right() {
    for (sent, param, message) in [
        (json!({"temperature": 3}), "temperature", "`temperature` must be a number between 0 and 2, not 3"),
        (
            json!({"temperature": "1"}),
            "temperature",
            "`temperature` must be a number between 0 and 2, not the text \"1\"",
        ),
        (json!({"count": 0}), "count", "`count` must be -1 or a whole number between 1 and 8, not 0"),
        (json!({"count": 1.5}), "count", "`count` must be -1 or a whole number between 1 and 8, not 1.5"),
        (
            json!({"heat": []}),
            "heat",
            "`heat` must be an array of 1 to 2 whole numbers between 0 and 9, not an empty array",
        ),
        (json!({"heat": [1, 10]}), "heat[1]", "`heat[1]` must be a whole number between 0 and 9, not 10"),
        (json!({"place": null, "unit": "c", "exact": false}), "unit", "`unit` needs `exact: true`"),
        (json!({"unit": "f", "exact": true}), "unit", "`unit` must be `c` or `k`, not the text \"f\""),
        (
            json!({"bias": {"01": 1}}),
            "bias.01",
            "unknown parameter `bias.01`: its name must be the id of a token, as in \"42\"",
        ),
        (json!({"filler": "x"}), "filler", "`filler` is not supported: leave it out, or empty"),
        (json!({"large": 0}), "large", "`large` must be a whole number of 1 or more, not 0"),
        (json!({"large": 1e17}), "large", "`large` must be a whole number between 1 and 9007199254740991, not 1e+17"),
        (
            json!({"ids": 5}),
            "ids",
            "`ids` must be a text that is not empty, an array of token ids, an array of 1 to 4 texts that are not empty or an \
             array of 1 to 4 arrays of token ids, not 5",
        ),
        (
            json!({"temperature": [1, 2, "a"]}),
            "temperature",
            "`temperature` must be a number between 0 and 2, not an array of 3: [0] is 1, [2] is the text \"a\"",
        ),
        (json!({"parts": []}), "parts", "`parts` must be an array of 1 to 3 spare parts, not an empty array"),
        (json!({"bias": {"1": 2}}), "bias.1", "`bias.1` must be a number between -1 and 1, not 2"),
        (json!({"inner": {}}), "inner.deep", "`inner.deep` is missing"),
        (
            json!({"inner": {"deep": true, "depe": 1}}),
            "inner.depe",
            "unknown parameter `inner.depe`; did you mean `deep`?",
        ),
        (json!({"temprature": 1}), "temprature", "unknown parameter `temprature`; did you mean `temperature`?"),
        (json!({"zzz": 1}), "zzz", "unknown parameter `zzz`"),
        (json!({"audio": {}}), "audio", "`audio` is not supported: no ears"),
        (
            json!({"heat_of": 1, "temperature": 1}),
            "heat_of",
            "`heat_of` is another name of `temperature`: say one of them",
        ),
    ] {
        let error = of(sent.clone()).unwrap_err();
        assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message), "{sent}");
    }
    let nothing = TABLE.check(json!({}).as_object_mut().unwrap()).unwrap_err();
    assert_eq!((nothing.param.as_deref(), nothing.code), (Some("place"), Some("missing_parameter")));
}
