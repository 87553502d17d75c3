//! Every crash in a swap leaves the old store or the new one, on a shelf of its own making and on real directories.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;

/// What lies in a place: a word for the store, and its mark.
type Place = (String, Option<Vec<u8>>);

/// A shelf whose stores are a word each. Names change at once for the process, and durably with `sync`.
#[derive(Clone, Default)]
struct Words {
    now: RefCell<BTreeMap<Slot, Place>>,
    durable: RefCell<BTreeMap<Slot, Place>>,
    /// Operations until the machine stops.
    allowance: Cell<usize>,
}

const OLD: &str = "old store";
const NEW: &str = "new store";
const AT: Applied = Applied { index: 700, term: 3 };

impl Words {
    fn with(home: Option<&str>, incoming: Option<Option<Vec<u8>>>) -> Self {
        let words = Words { allowance: Cell::new(usize::MAX), ..Words::default() };
        let home = home.map(|word| (Slot::Home, (word.to_owned(), None)));
        let incoming = incoming.map(|mark| (Slot::Incoming, (NEW.to_owned(), mark)));
        words.now.borrow_mut().extend(home.into_iter().chain(incoming));
        words.sync().unwrap();
        words
    }

    /// What the machine finds when it comes back: all names as they were last, or only what was synced.
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
        self.now.borrow().get(&Slot::Home).map(|(word, _)| word.clone())
    }

    fn slots(&self) -> Vec<Slot> {
        self.now.borrow().keys().copied().collect()
    }
}

impl Shelf for Words {
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

    fn mark(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        Ok(self.now.borrow().get(&slot).and_then(|(_, mark)| mark.clone()))
    }

    fn mark_name(&self, slot: Slot) -> String {
        format!("{slot:?}")
    }
}

fn ready_to_swap() -> Words {
    Words::with(Some(OLD), Some(Some(mark_bytes(AT))))
}

#[test]
fn a_swap_leaves_the_new_store_alone() {
    let shelf = ready_to_swap();
    assert_eq!(staged(&shelf).unwrap(), Some(AT));
    assert_eq!(swap(&shelf).unwrap(), AT);
    assert_eq!((shelf.home().as_deref(), shelf.slots()), (Some(NEW), vec![Slot::Home]));
    assert_eq!(staged(&shelf).unwrap(), None);
    assert!(matches!(swap(&shelf), Err(Error::Refused { .. })), "there is nothing left to install");
}

#[test]
fn a_crash_at_any_step_of_a_swap_can_be_ended_either_way() {
    for allowance in 0.. {
        for everything_arrived in [false, true] {
            let shelf = ready_to_swap();
            shelf.allowance.set(allowance);
            let is_done = swap(&shelf).is_ok();
            let found = shelf.after_crash(everything_arrived);
            let context = format!("{allowance} operations, {:?}", found.slots());
            match staged(&found).unwrap() {
                Some(AT) => {
                    let undone = found.after_crash(true);
                    discard(&undone).unwrap();
                    assert_eq!(
                        (undone.home().as_deref(), undone.slots()),
                        (Some(OLD), vec![Slot::Home]),
                        "{context}"
                    );
                    swap(&found).unwrap();
                }
                Some(other) => panic!("{context}: a store at {other:?}"),
                // The new store has its place; what may be left is the old one on its way out.
                None => discard(&found).unwrap(),
            }
            assert_eq!((found.home().as_deref(), found.slots()), (Some(NEW), vec![Slot::Home]), "{context}");
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
            let shelf = ready_to_swap();
            // Stopped between the two renames: two removals and syncs, one rename and its sync.
            shelf.allowance.set(4);
            assert!(swap(&shelf).is_err() && is_interrupted(&shelf).unwrap());
            let shelf = shelf.after_crash(true);
            shelf.allowance.set(allowance);
            let _ = discard(&shelf);
            let found = shelf.after_crash(everything_arrived);
            discard(&found).unwrap();
            assert_eq!((found.home().as_deref(), found.slots()), (Some(OLD), vec![Slot::Home]));
        }
    }
}

#[test]
fn a_store_that_is_not_whole_is_not_installed() {
    let shelf = Words::with(Some(OLD), Some(None));
    assert_eq!(staged(&shelf).unwrap(), None);
    assert!(matches!(swap(&shelf), Err(Error::Refused { .. })));
    assert_eq!(shelf.home().as_deref(), Some(OLD));
    discard(&shelf).unwrap();
    assert_eq!(shelf.slots(), [Slot::Home]);
}

#[test]
fn a_lost_store_is_replaced_as_well() {
    let shelf = Words::with(None, Some(Some(mark_bytes(AT))));
    assert_eq!(swap(&shelf).unwrap(), AT);
    assert_eq!(shelf.home().as_deref(), Some(NEW));
}

#[test]
fn every_flipped_bit_and_every_cut_of_the_mark_is_noticed() {
    let intact = mark_bytes(AT);
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
        let shelf = Words::with(Some(OLD), Some(Some(damaged)));
        assert!(matches!(staged(&shelf), Err(Error::Corrupt { .. })), "bit {bit}");
        assert!(swap(&shelf).is_err() && shelf.home().as_deref() == Some(OLD));
    }
    for length in 0..intact.len() {
        let shelf = Words::with(Some(OLD), Some(Some(intact[..length].to_vec())));
        assert!(staged(&shelf).is_err(), "cut to {length}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
