//! What a whole configuration comes to: the order of its layers, its refusals, and the shipped file.

use super::*;

fn env(home: &Path) -> Environment {
    Environment { home: Some(home.to_owned()), cores: 2, ..Environment::default() }
}

#[test]
fn layers_stack_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let user = dir.path().join(".config/chimere");
    fs::create_dir_all(&user).unwrap();
    fs::write(user.join("config.toml"), "[engine]\nthreads = 3\nsequences = 5\n[http]\nlisten='127.0.0.1:1'\n")
        .unwrap();
    let mut env = env(dir.path());
    env.chimere.push(("CHIMERE_ENGINE_SEQUENCES".into(), "6".into()));
    env.chimere.push(("CHIMERE_HTTP_LISTEN".into(), "127.0.0.1:2".into()));
    let flags = Flags { listen: Some("127.0.0.1:3".into()), ..Flags::default() };
    let config = Config::load_in(&flags, &env).unwrap();
    assert_eq!(config.engine.threads.get(), 3);
    assert_eq!(config.engine.sequences.get(), 6);
    assert_eq!(config.http.listen.port(), 3);
    assert_eq!(config.state_dir, dir.path().join(".local/state/chimere"));
    assert_eq!(config.replies.requests_max, 64);
}

#[test]
fn a_value_out_of_range_names_where_it_was_typed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    fs::write(&file, "[engine]\nsequences = 0\n").unwrap();
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let error = Config::load_in(&flags, &env(dir.path())).unwrap_err().to_string();
    assert_eq!(error, format!("{}:2:13: engine.sequences is 0, but must be 1 to 256", file.display()));
    let flags = Flags { listen: Some("everywhere".into()), ..Flags::default() };
    let error = Config::load_in(&flags, &env(dir.path())).unwrap_err().to_string();
    assert!(error.starts_with("flag --listen: http.listen is `everywhere`"), "{error}");
    for (key, wanted) in [("kv", "auto, f16, f32, q8_0/q4_0"), ("state", "f32, bf16")] {
        fs::write(&file, format!("[engine]\n{key} = 'q4_0'\n")).unwrap();
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let error = Config::load_in(&flags, &env(dir.path())).unwrap_err().to_string();
        assert!(error.ends_with(&format!("engine.{key} is `q4_0`, but must be one of {wanted}")), "{error}");
    }
    fs::write(&file, "[log]\nfilter = 'chimere=loud'\n").unwrap();
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let error = Config::load_in(&flags, &env(dir.path())).unwrap_err().to_string();
    assert!(error.contains(":2:10: log.filter is `chimere=loud`"), "{error}");
}

/// An empty path would be the folder that the program happens to run in.
#[test]
fn an_empty_path_is_refused_wherever_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let error = |flags: Flags, env: &Environment| Config::load_in(&flags, env).unwrap_err().to_string();
    for (key, section) in [("state_dir", "daemon"), ("path", "model"), ("adapter", "scorer"), ("golden", "night")] {
        fs::write(&file, format!("[{section}]\n{key} = ''\n")).unwrap();
        let said = error(Flags { config: Some(file.clone()), ..Flags::default() }, &env(dir.path()));
        assert!(
            said.contains(&format!(":2:{}: {section}.{key} is empty, but must be a path", key.len() + 4)),
            "{said}"
        );
    }
    let said = error(Flags { state_dir: Some("".into()), ..Flags::default() }, &env(dir.path()));
    assert!(said.starts_with("flag --state-dir: daemon.state_dir is empty"), "{said}");
    let mut variable = env(dir.path());
    variable.chimere.push(("CHIMERE_MODEL_PATH".into(), String::new()));
    let said = error(Flags::default(), &variable);
    assert!(said.starts_with("environment variable CHIMERE_MODEL_PATH: model.path is empty"), "{said}");
}

#[test]
fn the_shipped_file_says_the_defaults_and_every_key() {
    let text = include_str!("../../systemd/config.toml");
    let dir = tempfile::tempdir().unwrap();
    let env = env(dir.path());
    let shipped = Config::resolve(RawConfig::parse(text, "config.toml").unwrap(), &env).unwrap();
    assert_eq!(shipped, Config::resolve(RawConfig::default(), &env).unwrap());
    for (section, key) in RawConfig::keys() {
        let (_, rest) = text.split_once(&format!("[{section}]")).expect(section);
        let body = rest.split("\n[").next().unwrap();
        let said = body.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")));
        assert!(said, "[{section}] does not mention {key}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let flags = Flags { config: Some(dir.path().join("none.toml")), ..Flags::default() };
    assert!(matches!(Config::load_in(&flags, &env(dir.path())), Err(ConfigError::Read { .. })));
}

#[test]
fn systemd_says_where_the_state_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut env = env(dir.path());
    env.state_directory = Some(PathBuf::from("/var/lib/chimere"));
    let config = Config::load_in(&Flags::default(), &env).unwrap();
    assert_eq!(config.state_dir, PathBuf::from("/var/lib/chimere"));
}
