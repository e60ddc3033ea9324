//! Who is connected: the total and per-address caps. At a cap the oldest connection without a complete request gives
//! way. So a crowd of silent or dribbling connections keeps no client out. Where every connection is at work, the
//! newcomer is refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::limits::HttpLimits;
use super::watch::Activity;

/// One open connection.
#[derive(Debug)]
struct Entry {
    ip: IpAddr,
    activity: Arc<Activity>,
    /// Closes the connection.
    evict: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    /// Accept order is id order.
    open: std::collections::BTreeMap<u64, Entry>,
    per_ip: HashMap<IpAddr, usize>,
}

impl Table {
    fn remove(&mut self, id: u64) {
        let Some(entry) = self.open.remove(&id) else { return };
        if let Some(count) = self.per_ip.get_mut(&entry.ip) {
            *count -= 1;
            if *count == 0 {
                self.per_ip.remove(&entry.ip);
            }
        }
    }

    /// Closes the oldest connection with nothing to lose, of one address or of all.
    fn evict_oldest(&mut self, ip: Option<IpAddr>) -> bool {
        let oldest = self
            .open
            .iter()
            .find(|(_, entry)| ip.is_none_or(|ip| entry.ip == ip) && entry.activity.may_give_way())
            .map(|(&id, _)| id);
        let Some(id) = oldest else { return false };
        if let Some(entry) = self.open.get(&id) {
            entry.evict.cancel();
        }
        self.remove(id);
        true
    }
}

/// The table of open connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    table: Arc<Mutex<Table>>,
}

/// Which cap refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Total,
    PerIp,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from `ip`.
    pub(crate) fn admit(&self, ip: IpAddr, activity: Arc<Activity>, limits: &HttpLimits) -> Result<Place, Refused> {
        let mut table = self.table();
        let own = table.per_ip.get(&ip).copied().unwrap_or(0);
        if own >= limits.connections_per_ip_max && !table.evict_oldest(Some(ip)) {
            return Err(Refused::PerIp);
        }
        if table.open.len() >= limits.connections_max && !table.evict_oldest(None) {
            return Err(Refused::Total);
        }
        let id = table.next_id;
        table.next_id += 1;
        let evict = CancellationToken::new();
        table.open.insert(id, Entry { ip, activity, evict: evict.clone() });
        *table.per_ip.entry(ip).or_insert(0) += 1;
        Ok(Place { id, connections: self.clone(), evict })
    }

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.table().open.len()
    }
}

/// A connection's place in the table, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    connections: Connections,
    /// Cancelled when the connection must give way.
    pub(crate) evict: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn the_oldest_idle_connection_gives_way_and_a_busy_one_does_not() {
        let limits = HttpLimits { connections_max: 3, connections_per_ip_max: 2, ..HttpLimits::default() };
        let connections = Connections::default();
        let busy = Activity::new();
        let mark = busy.begin(false);
        mark.ticket().admit();
        let first = connections.admit(ip(1), Arc::clone(&busy), &limits).unwrap();
        let second = connections.admit(ip(1), Activity::new(), &limits).unwrap();
        let third = connections.admit(ip(1), Activity::new(), &limits).unwrap();
        assert!(!first.evict.is_cancelled() && second.evict.is_cancelled() && !third.evict.is_cancelled());
        assert_eq!(connections.open(), 2);
        let _other = connections.admit(ip(2), Arc::clone(&busy), &limits).unwrap();
        let _fourth = connections.admit(ip(3), Arc::clone(&busy), &limits).unwrap();
        assert!(third.evict.is_cancelled(), "the total cap evicts whoever is idle");
        assert_eq!(connections.admit(ip(4), Activity::new(), &limits).unwrap_err(), Refused::Total);
        drop(first);
        assert_eq!(connections.open(), 2);
        drop(mark);
        assert!(connections.admit(ip(4), Activity::new(), &limits).is_ok());
    }

    #[test]
    fn an_address_with_only_busy_connections_is_refused() {
        let limits = HttpLimits { connections_per_ip_max: 1, ..HttpLimits::default() };
        let connections = Connections::default();
        let busy = Activity::new();
        let mark = busy.begin(false);
        let receiving = connections.admit(ip(1), Arc::clone(&busy), &limits).unwrap();
        let place = connections.admit(ip(1), Arc::clone(&busy), &limits).unwrap();
        assert!(receiving.evict.is_cancelled(), "its request was not complete");
        mark.ticket().admit();
        assert_eq!(connections.admit(ip(1), Activity::new(), &limits).unwrap_err(), Refused::PerIp);
        assert!(connections.admit(ip(2), Activity::new(), &limits).is_ok());
        drop(place);
        assert!(connections.admit(ip(1), Activity::new(), &limits).is_ok());
    }
}
