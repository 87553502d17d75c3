//! A member receives the store of another one: chunk by chunk, into a separate place.

use mvcc::Staging;
use raft_node::LogPosition;

use super::site::{MemberError, SimMember};
use crate::panics::lock;

impl SimMember {
    /// Raft has no use for the snapshot that was staged at `at`.
    pub fn discard(&mut self, at: LogPosition) {
        let disk = self.store_disk.clone();
        if lock(self.store_owner()).slot.take(at).is_some() {
            disk.discard_staged();
        }
    }

    /// Makes room for a stream: an older one that is not whole gives way. False if a whole store has the
    /// place.
    pub fn begin_receiving(&mut self, number: u64) -> Result<bool, MemberError> {
        let Some((slot, _)) = lock(self.store_owner()).slot.begin(()) else { return Ok(false) };
        let (disk, options) = (self.store_disk.clone(), self.store_options());
        let up = self.up.as_mut().expect("only a running member receives");
        up.staging = None;
        let staging = Staging::begin(Box::new(disk.incoming()), &options);
        let staging = staging.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        self.up.as_mut().expect("it is up").staging = Some((number, slot, staging));
        Ok(true)
    }

    /// Takes in the next chunk of a stream. False if another one has taken its place.
    pub fn receive(&mut self, number: u64, chunk: &[u8]) -> Result<bool, MemberError> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, slot, staging)) = up.staging.as_mut().filter(|staging| staging.0 == number) else {
            return Ok(false);
        };
        assert!(lock(&up.store_owner).slot.is_current(*slot), "the slot and the stream disagree");
        let added = staging.add(chunk);
        added.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        Ok(true)
    }

    /// The stream has ended: what came is checked as a whole and made durable. False as above.
    pub fn stage(&mut self, number: u64) -> Result<bool, MemberError> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, slot, staging)) = up.staging.take_if(|staging| staging.0 == number) else {
            return Ok(false);
        };
        let staged = staging.finish().map_err(|error| self.store_trouble("stage a snapshot", &error))?;
        Ok(lock(self.store_owner()).slot.finish(slot, staged.applied(), staged).is_ok())
    }
}
