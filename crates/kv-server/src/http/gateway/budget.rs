//! Memory budget of large requests and responses of all connections.
//!
//! Small ones are not counted, as the number of calls is bounded.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use admission::{Bounds, ClientId, Gate, Pass};

/// Size below which a message is not counted.
pub(super) const FREE_BYTES: usize = 4 << 10;
/// Memory for all messages above [`FREE_BYTES`], including their conversions.
const BYTES_MAX: usize = 256 << 20;
/// Memory of a response, relative to its encoded size: many small pairs take three times as much when
/// decoded, and five times as JSON.
const ANSWER_FACTOR: usize = 8;
/// The largest encoded response.
pub(super) const ANSWER_BYTES_MAX: usize = BYTES_MAX / ANSWER_FACTOR;
/// Memory of a request: as JSON, decoded and encoded.
const REQUEST_FACTOR: usize = 4;
const UNIT_BYTES: usize = 1 << 10;

/// Maximum time that a response waits for memory.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the gate shared by all calls. Weights are in KiB.
pub(super) fn gate() -> Arc<Gate> {
    let capacity = (BYTES_MAX / UNIT_BYTES) as u64;
    Gate::new(Bounds {
        capacity,
        reserve: 0,
        light_max: capacity,
        waiting_max: usize::MAX, // the number of calls is bounded
        waiting_weight_max: u64::MAX,
        wait_max: WAIT_MAX,
    })
}

#[derive(Clone)]
pub(super) struct Budget {
    gate: Arc<Gate>,
    client: ClientId,
}

/// Counted bytes, until it is dropped.
#[derive(Default)]
#[must_use]
pub(super) struct BudgetPass(Option<Pass>);

impl Budget {
    pub fn new(gate: &Arc<Gate>, client: ClientId) -> Budget {
        Budget { gate: Arc::clone(gate), client }
    }

    /// Reserves memory for a response of `bytes`, at most [`ANSWER_BYTES_MAX`]; waits until it is
    /// available.
    pub async fn answer(&self, bytes: usize) -> Result<BudgetPass, Status> {
        if bytes <= FREE_BYTES {
            return Ok(BudgetPass(None));
        }
        let entered = self.gate.enter(self.client, units(bytes, ANSWER_FACTOR)).await;
        entered.map(|pass| BudgetPass(Some(pass))).map_err(|_| grpc_errors::reads_exhausted())
    }

    /// Counts a request that has grown to `bytes`. Returns false if that exceeds the budget: requests do
    /// not wait, since they hold memory already.
    pub fn request(&self, held: &mut BudgetPass, bytes: usize) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        let wanted = units(bytes, REQUEST_FACTOR);
        match &mut held.0 {
            Some(pass) => match wanted.saturating_sub(pass.weight()) {
                0 => true,
                more => pass.try_grow(more),
            },
            none => {
                *none = self.gate.try_enter(self.client, wanted);
                none.is_some()
            }
        }
    }
}

impl BudgetPass {
    /// Reports whether the caller should drop incomplete requests because more callers arrived.
    pub fn is_over_share(&self) -> bool {
        self.0.as_ref().is_some_and(Pass::is_over_share)
    }
}

fn units(bytes: usize, factor: usize) -> u64 {
    bytes.saturating_mul(factor).min(BYTES_MAX).div_ceil(UNIT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_refused_and_answers_wait_when_nothing_is_left() {
        let gate = gate();
        let used = || gate.gauges().0 as usize * UNIT_BYTES;
        let [budget, other] = [1, 2].map(|client| Budget::new(&gate, ClientId::alone(client)));
        let (mut first, mut second) = (BudgetPass::default(), BudgetPass::default());
        assert!(budget.request(&mut first, FREE_BYTES));
        assert_eq!(used(), 0);
        for bytes in [FREE_BYTES + 1, 1 << 20, 1 << 20] {
            assert!(budget.request(&mut first, bytes));
        }
        assert_eq!(used(), 4 << 20, "counted once");
        let answer = other.answer(ANSWER_BYTES_MAX - (1 << 20)).await.unwrap();
        assert!(!other.request(&mut second, 2 << 20));
        assert!(futures_util::FutureExt::now_or_never(budget.answer(ANSWER_BYTES_MAX)).is_none());
        drop((answer, first));
        let _all = budget.answer(ANSWER_BYTES_MAX).await.unwrap();
        assert_eq!(used(), BYTES_MAX);
    }

    #[test]
    fn requests_of_one_address_leave_room_to_others_on_any_number_of_connections() {
        let gate = gate();
        let request = |caller, connection| {
            let (budget, mut held) =
                (Budget::new(&gate, ClientId { caller, connection }), BudgetPass::default());
            budget.request(&mut held, 3 << 20).then_some(held)
        };
        let mut hoard: Vec<BudgetPass> = (0..1000).filter_map(|connection| request(1, connection)).collect();
        assert_eq!(hoard.len(), 16, "three quarters");
        let others: Vec<BudgetPass> = (2..100).filter_map(|caller| request(caller, 1000 + caller)).collect();
        assert_eq!(others.len(), 5);
        hoard.retain(|held| !held.is_over_share());
        assert!(request(100, 2000).is_some(), "shares shrink as others come");
    }
}
