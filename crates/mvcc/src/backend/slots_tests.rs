//! A crash at any point of a swap leaves the old store or the new one, in a simulated file system and
//! in directories.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;

/// Contents of a slot: a word for the store, and its marker.
type SlotContents = (String, Option<Vec<u8>>);

/// A file system with words for stores. Renames take effect immediately, and are durable after `sync`.
#[derive(Clone, Default)]
struct Words {
    now: RefCell<BTreeMap<Slot, SlotContents>>,
    durable: RefCell<BTreeMap<Slot, SlotContents>>,
    /// Number of operations before the crash.
    allowance: Cell<usize>,
}

const OLD: &str = "old store";
const NEW: &str = "new store";
const AT: LogPosition = LogPosition::new(700, 3);

impl Words {
    fn with(home: Option<&str>, incoming: Option<Option<Vec<u8>>>) -> Self {
        let words = Words { allowance: Cell::new(usize::MAX), ..Words::default() };
        let home = home.map(|word| (Slot::Current, (word.to_owned(), None)));
        let incoming = incoming.map(|marker| (Slot::Incoming, (NEW.to_owned(), marker)));
        words.now.borrow_mut().extend(home.into_iter().chain(incoming));
        words.sync().unwrap();
        words
    }

    /// Returns the state after a crash: with all renames, or only with the synced ones.
    fn after_crash(&self, everything_arrived: bool) -> Self {
        let names = if everything_arrived { &self.now } else { &self.durable }.borrow().clone();
        Words {
            now: RefCell::new(names.clone()),
            durable: RefCell::new(names),
            allowance: Cell::new(usize::MAX),
        }
    }

    fn spend(&self) -> Result<()> {
        let left = self.allowance.get().checked_sub(1);
        self.allowance.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(Error::Poisoned)
    }

    fn home(&self) -> Option<String> {
        self.now.borrow().get(&Slot::Current).map(|(word, _)| word.clone())
    }

    fn slots(&self) -> Vec<Slot> {
        self.now.borrow().keys().copied().collect()
    }
}

impl SlotStorage for Words {
    fn has(&self, slot: Slot) -> Result<bool> {
        Ok(self.now.borrow().contains_key(&slot))
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        self.spend()?;
        let moved = self.now.borrow_mut().remove(&from).expect("renamed while it is there");
        let other = self.now.borrow_mut().insert(to, moved);
        assert!(other.is_none(), "a rename onto another store");
        Ok(())
    }

    fn remove(&self, slot: Slot) -> Result<()> {
        self.spend()?;
        self.now.borrow_mut().remove(&slot);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.spend()?;
        self.durable.replace(self.now.borrow().clone());
        Ok(())
    }

    fn marker(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        Ok(self.now.borrow().get(&slot).and_then(|(_, marker)| marker.clone()))
    }

    fn marker_name(&self, slot: Slot) -> String {
        format!("{slot:?}")
    }
}

fn ready_to_swap() -> Words {
    Words::with(Some(OLD), Some(Some(marker_bytes(AT))))
}

#[test]
fn a_swap_leaves_only_the_new_store() {
    let slots = ready_to_swap();
    assert_eq!(staged(&slots).unwrap(), Some(AT));
    assert_eq!(swap(&slots).unwrap(), AT);
    assert_eq!((slots.home().as_deref(), slots.slots()), (Some(NEW), vec![Slot::Current]));
    assert_eq!(staged(&slots).unwrap(), None);
    assert!(matches!(swap(&slots), Err(Error::Refused { .. })), "there is nothing left to install");
}

#[test]
fn a_crash_at_any_step_of_a_swap_can_be_ended_either_way() {
    for allowance in 0.. {
        for everything_arrived in [false, true] {
            let slots = ready_to_swap();
            slots.allowance.set(allowance);
            let is_done = swap(&slots).is_ok();
            let found = slots.after_crash(everything_arrived);
            let context = format!("{allowance} operations, {:?}", found.slots());
            match staged(&found).unwrap() {
                Some(AT) => {
                    let undone = found.after_crash(true);
                    discard(&undone).unwrap();
                    assert_eq!(
                        (undone.home().as_deref(), undone.slots()),
                        (Some(OLD), vec![Slot::Current]),
                        "{context}"
                    );
                    swap(&found).unwrap();
                }
                Some(other) => panic!("{context}: a store at {other:?}"),
                // The new store is in place. The old one may remain.
                None => discard(&found).unwrap(),
            }
            assert_eq!(
                (found.home().as_deref(), found.slots()),
                (Some(NEW), vec![Slot::Current]),
                "{context}"
            );
            if is_done && everything_arrived {
                assert!(allowance > 6, "a swap of only {allowance} operations");
                return;
            }
        }
    }
}

#[test]
fn a_crash_while_discarding_leaves_the_old_store() {
    for allowance in 0..12 {
        for everything_arrived in [false, true] {
            let slots = ready_to_swap();
            // Stop between the two renames: after two removals and syncs, one rename and its sync.
            slots.allowance.set(4);
            assert!(swap(&slots).is_err() && is_interrupted(&slots).unwrap());
            let slots = slots.after_crash(true);
            slots.allowance.set(allowance);
            let _ = discard(&slots);
            let found = slots.after_crash(everything_arrived);
            discard(&found).unwrap();
            assert_eq!((found.home().as_deref(), found.slots()), (Some(OLD), vec![Slot::Current]));
        }
    }
}

#[test]
fn an_incomplete_store_is_not_installed() {
    let slots = Words::with(Some(OLD), Some(None));
    assert_eq!(staged(&slots).unwrap(), None);
    assert!(matches!(swap(&slots), Err(Error::Refused { .. })));
    assert_eq!(slots.home().as_deref(), Some(OLD));
    discard(&slots).unwrap();
    assert_eq!(slots.slots(), [Slot::Current]);
}

#[test]
fn a_lost_store_is_replaced() {
    let slots = Words::with(None, Some(Some(marker_bytes(AT))));
    assert_eq!(swap(&slots).unwrap(), AT);
    assert_eq!(slots.home().as_deref(), Some(NEW));
}

#[test]
fn every_flipped_bit_and_truncation_of_the_marker_is_detected() {
    let intact = marker_bytes(AT);
    assert_eq!(
        hex(&intact[..28]),
        "6d76636372656376" /* magic */
            .to_owned()
            + "01000000"
            + "bc02000000000000"
            + "0300000000000000",
        "the form of the mark is frozen"
    );
    for bit in 0..intact.len() * 8 {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let slots = Words::with(Some(OLD), Some(Some(damaged)));
        assert!(matches!(staged(&slots), Err(Error::Corrupt { .. })), "bit {bit}");
        assert!(swap(&slots).is_err() && slots.home().as_deref() == Some(OLD));
    }
    for length in 0..intact.len() {
        let slots = Words::with(Some(OLD), Some(Some(intact[..length].to_vec())));
        assert!(staged(&slots).is_err(), "cut to {length}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
