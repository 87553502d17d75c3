//! One flow-control window (RFC 9113, section 5.2 and 6.9).
//!
//! A send window shrinks with sent bytes and grows with WINDOW_UPDATE; a new initial size may make it
//! negative. A receive window is returned in halves, so that one WINDOW_UPDATE covers many bodies. While
//! the owner holds most of the window, smaller parts are returned: the peer has little left, and half of
//! the window may not come free for long.

/// The largest window that the RFC allows.
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// Bytes that this side may still send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(i64);

/// A window above 2^31-1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl SendWindow {
    pub(crate) fn new(bytes: u32) -> SendWindow {
        SendWindow(i64::from(bytes))
    }

    pub(crate) fn room(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// Takes `bytes` off the window. They must not exceed [`SendWindow::room`].
    pub(crate) fn sent(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.room(), "sent more than the window");
        self.0 -= bytes as i64;
    }

    /// Adds the increment of a WINDOW_UPDATE, or the difference of two initial sizes.
    pub(crate) fn change(&mut self, by: i64) -> Result<(), Overflow> {
        let changed = self.0 + by;
        if changed > WINDOW_MAX {
            return Err(Overflow);
        }
        self.0 = changed;
        Ok(())
    }
}

/// Bytes that the peer may still send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    size: u32,
    left: u32,
    /// Released by the owner, not yet returned to the peer.
    released: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow { size, left: size, released: 0 }
    }

    /// Accounts for received bytes. Returns false if they exceed the window.
    #[must_use]
    pub(crate) fn receive(&mut self, bytes: u32) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return false,
        }
        true
    }

    /// Releases bytes that were received. Returns the increment of a WINDOW_UPDATE that is due.
    ///
    /// More than was received and not yet released counts as all of it: the window never exceeds its size.
    pub(crate) fn release(&mut self, bytes: usize) -> Option<u32> {
        let held = self.size - self.left - self.released;
        self.released += u32::try_from(bytes).unwrap_or(u32::MAX).min(held);
        let due = if self.left < self.size / 4 { self.left / 2 } else { self.size / 2 };
        if self.released == 0 || self.released < due {
            return None;
        }
        self.left += self.released;
        Some(std::mem::take(&mut self.released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_given_back_in_halves_and_never_exceeds_its_size() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.receive(60));
        assert!(!window.receive(41));
        assert_eq!(window.release(49), None);
        assert_eq!(window.release(1000), Some(60));
        assert!(window.receive(100));
        assert!(!window.receive(1));
    }

    #[test]
    fn a_window_of_which_the_owner_holds_most_is_given_back_in_smaller_parts() {
        for (received, parts) in [
            (75, [(24, None), (1, None), (25, Some(50))]),
            (76, [(11, None), (1, Some(12)), (1, None)]),
            (98, [(1, Some(1)), (1, Some(1)), (1, None)]),
            (100, [(1, Some(1)), (1, Some(1)), (1, Some(1))]),
        ] {
            let mut window = ReceiveWindow::new(100);
            assert!(window.receive(received));
            for (released, given_back) in parts {
                assert_eq!(window.release(released), given_back, "{released} of {received}");
            }
        }
    }

    #[test]
    fn a_send_window_may_be_negative_and_not_exceed_its_maximum() {
        let mut window = SendWindow::new(10);
        window.sent(10);
        assert_eq!(window.change(-5), Ok(()));
        assert_eq!(window.room(), 0);
        assert_eq!(window.change(WINDOW_MAX + 5), Ok(()));
        assert_eq!(window.change(1), Err(Overflow));
    }
}
