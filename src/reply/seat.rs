//! Which engine answers a reply: the serving one, or that of the further model that the request names. It stays the
//! same while the seat is held.

use std::sync::Arc;

use super::{Replies, unavailable};
use crate::actors::inference::{Board, FleetError, Inference, Pass, Visit};
use crate::actors::link::Link;
use crate::engine::protocol::Hosted;
use crate::service::ServiceError;

pub(super) struct Seat {
    pub(super) inference: Link<Inference>,
    pub(super) board: Arc<Board>,
    pub(super) hosted: Arc<Hosted>,
    /// What a reply calls its model.
    pub(super) name: String,
    held: Held,
}

enum Held {
    Serving(Pass),
    Further(Visit),
}

impl Seat {
    /// Generations, their canaries and what was learned are those of the served model.
    pub(super) fn serving(&self) -> bool {
        matches!(self.held, Held::Serving(_))
    }

    /// Resolves when the model must be changed now.
    pub(super) async fn cut(&self) {
        match &self.held {
            Held::Serving(pass) | Held::Further(Visit { pass, .. }) => pass.cut().await,
        }
    }
}

impl Replies {
    /// The engine of the model that a request wants, once it takes requests.
    pub(super) async fn seat(&self, wanted: Option<&str>) -> Result<Seat, ServiceError> {
        let serving = |name: &str| self.board.hosted().is_some_and(|hosted| hosted.model.name == name);
        if let Some(name) = wanted.filter(|name| !serving(name))
            && let Some(berth) = self.fleet.find(name)
        {
            let (visit, hosted) = self.fleet.visit(berth).await.map_err(refused)?;
            let (inference, board) = (berth.inference.clone(), berth.board.clone());
            return Ok(Seat { inference, board, hosted, name: name.to_owned(), held: Held::Further(visit) });
        }
        let pass = self.enter().await?;
        let hosted = self.hosted().await?;
        let (inference, board, name) = (self.inference.clone(), self.board.clone(), hosted.model.name.clone());
        if let Some(wanted) = wanted.filter(|wanted| !self.is_served(wanted, &hosted)) {
            return Err(self.unknown(wanted, &hosted));
        }
        Ok(Seat { inference, board, hosted, name, held: Held::Serving(pass) })
    }

    /// As in the list of models: the embedding model's name stays its own.
    fn is_served(&self, name: &str, hosted: &Hosted) -> bool {
        let embeds = || self.examples.embedder().is_ok_and(|embedder| embedder.name() == name);
        name == hosted.model.name || (self.config.get().model_aliases.iter().any(|alias| alias == name) && !embeds())
    }

    fn unknown(&self, wanted: &str, hosted: &Hosted) -> ServiceError {
        let config = self.config.get();
        let further = self.fleet.berths().iter().flat_map(|berth| &berth.names);
        let names: Vec<String> = std::iter::once(&hosted.model.name)
            .chain(&config.model_aliases)
            .chain(further)
            .map(|name| format!("`{name}`"))
            .collect();
        ServiceError::NoSuchModel(format!("the model `{wanted}` is not served here; {} is", names.join(" or ")))
    }
}

/// Why a further model does not answer, as a client hears it.
pub fn refused(error: FleetError) -> ServiceError {
    let retry_after_s = match &error {
        FleetError::Failed { retry_after_s, .. } => *retry_after_s,
        FleetError::Full(_) | FleetError::Late(_) => 5,
        FleetError::Link(_) => 1,
    };
    unavailable(&error.to_string(), retry_after_s)
}
