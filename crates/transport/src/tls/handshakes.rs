//! Handshakes in flight. A full table gives up the oldest, never the newest: a handshake takes milliseconds,
//! so the oldest of many is one that its client does not go on with.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A handshake holds some 20 KiB, and at most 64 KiB of what its client has sent: 64 MiB together. As many
/// full handshakes with RSA keys take about a second of one core, less than their deadline.
pub const HANDSHAKES_MAX: usize = 1024;

/// All handshakes of a port.
#[derive(Clone, Default)]
pub struct Handshakes(Arc<Mutex<InFlight>>);

#[derive(Default)]
struct InFlight {
    next_number: u64,
    /// By number, so that the first is the oldest.
    open: BTreeMap<u64, Arc<Notify>>,
}

/// One handshake; counted until it is dropped.
pub struct Handshake {
    all: Handshakes,
    number: u64,
    displaced: Arc<Notify>,
}

impl Handshakes {
    pub fn begin(&self) -> Handshake {
        let displaced = Arc::new(Notify::new());
        let mut all = self.0.lock();
        let number = all.next_number;
        all.next_number += 1;
        all.open.insert(number, Arc::clone(&displaced));
        if all.open.len() > HANDSHAKES_MAX
            && let Some((_, oldest)) = all.open.pop_first()
        {
            oldest.notify_one();
        }
        Handshake { all: self.clone(), number, displaced }
    }
}

impl Handshake {
    /// Returns when this handshake must be given up for newer ones.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.0.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_full_table_gives_up_the_oldest() {
        let handshakes = Handshakes::default();
        let mut open: Vec<Handshake> = (0..HANDSHAKES_MAX).map(|_| handshakes.begin()).collect();
        assert!(open.iter().all(|one| one.displaced().now_or_never().is_none()));
        open.push(handshakes.begin());
        let displaced: Vec<bool> = open.iter().map(|one| one.displaced().now_or_never().is_some()).collect();
        assert!(displaced[0] && displaced[1..].iter().all(|is_displaced| !is_displaced));
        open.clear();
        assert!(handshakes.0.lock().open.is_empty());
    }
}
