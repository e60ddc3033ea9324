//! What was typed is read with its place, and layers are put over each other.

use super::*;

#[test]
fn an_unknown_key_names_its_place_and_what_was_meant() {
    let error = RawConfig::parse("[http]\nlistn = \"x\"\n", "c.toml").unwrap_err().to_string();
    assert_eq!(error, "c.toml:2:1: unknown key `listn`: did you mean `listen`?");
    let error = RawConfig::parse("[engin]\n", "c.toml").unwrap_err().to_string();
    assert!(error.contains("did you mean `engine`?"), "{error}");
    let error = RawConfig::parse("[http]\nzzzzzz = 1\n", "c.toml").unwrap_err().to_string();
    assert!(error.contains("expected one of"), "{error}");
}

#[test]
fn a_wrong_type_names_its_place() {
    let error = RawConfig::parse("[engine]\n\nthreads = \"two\"\n", "c.toml").unwrap_err().to_string();
    assert_eq!(error, "c.toml:3:11: engine.threads must be a whole number of 0 or more, not the text \"two\"");
    for (text, said) in [
        ("[model]\naliases = \"a\"\n", "c.toml:2:11: model.aliases must be an array, not the text \"a\""),
        ("[memory]\nbytes_max = -1\n", "c.toml:2:13: memory.bytes_max must be a whole number of 0 or more, not -1"),
        ("night.enabled = 1\n", "c.toml:1:17: night.enabled must be true or false, not 1"),
    ] {
        assert_eq!(RawConfig::parse(text, "c.toml").unwrap_err().to_string(), said);
    }
}

#[test]
fn variables_are_typed_by_their_key() {
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let (raw, unknown) = RawConfig::from_variables(&[
        set("CHIMERE_ENGINE_THREADS", "3"),
        set("CHIMERE_HTTP_LISTEN", "127.0.0.1:1"),
        set("CHIMERE_MODEL_PATH", "12"),
        set("CHIMERE_HTTP_HOSTS", "[\"a\", \"b\"]"),
        set("CHIMERE_PORT_8377_TCP", "tcp://10.0.0.1"),
    ])
    .unwrap();
    assert_eq!(raw.engine.threads.unwrap().value, 3);
    assert_eq!(raw.http.listen.unwrap().value, "127.0.0.1:1");
    assert_eq!(raw.model.path.unwrap().value, PathBuf::from("12"));
    assert_eq!(raw.http.hosts.unwrap().value, ["a", "b"]);
    assert_eq!(unknown, ["CHIMERE_PORT_8377_TCP"]);
    for (value, found) in [("many", "the text \"many\""), ("-1", "-1"), ("[1]", "an array")] {
        let error = RawConfig::from_variables(&[set("CHIMERE_ENGINE_THREADS", value)]).unwrap_err().to_string();
        let said = format!("engine.threads must be a whole number of 0 or more, not {found}");
        assert_eq!(error, format!("environment variable CHIMERE_ENGINE_THREADS: {said}"));
    }
}

#[test]
fn upper_layers_win_field_by_field() {
    let above = RawConfig::parse("[engine]\nthreads = 4\n", "above").unwrap();
    let below = RawConfig::parse("[engine]\nthreads = 1\nsequences = 2\n", "below").unwrap();
    let both = above.over(below);
    assert_eq!(both.engine.threads.map(|f| (f.value, f.origin)), Some((4, "above:2:11".to_owned())));
    assert_eq!(both.engine.sequences.map(|f| f.origin), Some("below:3:13".to_owned()));
}
