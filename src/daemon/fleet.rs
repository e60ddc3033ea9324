//! Further models as the configuration names them: how their engines are started, what is told of them, and one loaded or
//! unloaded by hand.

use std::ffi::OsString;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::model::{Models, hindrance};
use super::{DaemonError, engine_spec};
use crate::actors::inference::{Berth, Fleet, FleetLimits};
use crate::actors::supervisor::{Budget, Place};
use crate::config::Config;
use crate::service::{FurtherModel, ServiceError};

/// What an engine of a further model is not told: adapters and prompts that outlive it are the served model's.
const NOT_THEIRS: [(&str, bool); 2] = [("--adapters", false), ("--snapshots-file", true)];

pub(super) fn fleet(config: &Config, place: &Place, budget: Budget) -> Result<Fleet, DaemonError> {
    let models = &config.models;
    let limits = FleetLimits { loaded_max: models.loaded_max, idle: models.idle_unload, wait: models.load_wait };
    let spec = |(file, names): (&std::path::PathBuf, &Vec<String>)| {
        // It may be there by the time that somebody asks for it.
        if let Some(why) = hindrance(file) {
            let file = file.display();
            tracing::warn!(model = names[0], "the further model cannot be loaded as it is: {file} {why}");
        }
        let mut spec = engine_spec(config, file.clone())?;
        spec.args = theirs(spec.args);
        Ok((names.clone(), spec))
    };
    let all = models.files.iter().map(spec).collect::<Result<Vec<_>, DaemonError>>()?;
    Ok(Fleet::new(all, limits, place, budget, &Handle::current()))
}

fn theirs(args: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match NOT_THEIRS.iter().find(|(name, _)| arg == *name) {
            Some((_, true)) => drop(args.next()),
            Some((_, false)) => {}
            None => kept.push(arg),
        }
    }
    kept
}

/// By name, for the list of models.
pub(super) fn listed(fleet: &Fleet) -> Vec<FurtherModel> {
    let of = |berth: &Arc<Berth>| {
        let state = berth.board.state();
        let model = |name: &String| FurtherModel { name: name.clone(), state: state.name(), hosted: state.hosted() };
        berth.names.iter().map(model).collect::<Vec<_>>()
    };
    let mut all: Vec<FurtherModel> = fleet.berths().iter().flat_map(of).collect();
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    all
}

/// For who runs the daemon.
pub(super) fn show(fleet: &Fleet) -> Value {
    let of = |berth: &Arc<Berth>| {
        json!({
            "names": berth.names,
            "file": berth.file,
            "idle_ms": berth.idle().as_millis() as u64,
            "engine": berth.board.status(),
        })
    };
    fleet.berths().iter().map(of).collect()
}

impl Models {
    pub(super) async fn load(self: &Arc<Self>, name: &str, wait: bool) -> Result<Value, ServiceError> {
        let berth = self.berth(name)?;
        let (models, begun) = (self.clone(), berth.clone());
        let loading = tokio::spawn(async move { models.fleet.visit(&begun).await.map(drop) });
        if wait {
            let loaded = loading.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
            loaded.map_err(crate::reply::refused)?;
        }
        Ok(self.show())
    }

    pub(super) async fn unload(self: &Arc<Self>, name: &str, wait: bool) -> Result<Value, ServiceError> {
        let berth = self.berth(name)?;
        let models = self.clone();
        let unloading = tokio::spawn(async move { models.fleet.dismiss(&berth).await });
        if wait {
            unloading.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
        }
        Ok(self.show())
    }

    fn berth(&self, name: &str) -> Result<Arc<Berth>, ServiceError> {
        let found = self.fleet.find(name).cloned();
        found.ok_or_else(|| {
            let names: Vec<String> = listed(&self.fleet).into_iter().map(|model| format!("`{}`", model.name)).collect();
            let known = match names.as_slice() {
                [] => "the configuration names none (models.files)".to_owned(),
                names => format!("the further models are {}", names.join(", ")),
            };
            let served = if self.hosted_as(name) { "; it is the served model, which stays loaded" } else { "" };
            let name: String = name.chars().take(128).collect();
            ServiceError::NoSuchModel(format!("there is no further model `{name}`: {known}{served}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_of_a_further_model_has_neither_adapters_nor_the_served_ones_file() {
        let args = ["engine", "--adapters", "--threads", "2", "--snapshots-file", "/a", "--x"].map(OsString::from);
        assert_eq!(theirs(args.to_vec()), ["engine", "--threads", "2", "--x"].map(OsString::from));
    }
}
