//! The face that others see: cheap to clone, callable from any thread.

use std::marker::PhantomData;

use bytes::Bytes;

use crate::{ProposeError, ReadError, TransferError};

/// What this member does in Raft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Follower,
    Candidate,
    Leader,
}

/// A reading of the member's gauges; each is right, but they may be of slightly different moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    pub id: u64,
    pub role: Role,
    /// None while no leader is known.
    pub leader: Option<u64>,
    pub term: u64,
    pub commit: u64,
    pub applied: u64,
    pub last_index: u64,
    /// Proposals of this member that have no answer yet.
    pub proposals_pending: usize,
}

/// One member, as the rest of the process uses it.
pub struct Handle<O> {
    _outcome: PhantomData<fn() -> O>,
}

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Self {
        Handle { _outcome: PhantomData }
    }
}

impl<O: Send + 'static> Handle<O> {
    /// Replicates `command` and returns its outcome once it was applied on this member.
    ///
    /// May be called on any member. Dropping the future does not withdraw the command.
    pub async fn propose(&self, _command: Bytes) -> Result<O, ProposeError> {
        Err(ProposeError::Stopped)
    }

    /// Waits until this member has applied everything that was committed, anywhere, when the call began, and
    /// returns the index up to which that is so. A read of the state machine made afterwards is linearizable.
    pub async fn read_point(&self) -> Result<u64, ReadError> {
        Err(ReadError::Stopped)
    }

    /// The gauges, without disturbing the driver.
    pub fn status(&self) -> Status {
        Status {
            id: 0,
            role: Role::Follower,
            leader: None,
            term: 0,
            commit: 0,
            applied: 0,
            last_index: 0,
            proposals_pending: 0,
        }
    }

    /// Hands in bytes that peer `from` sent. Never blocks; a malformed message is dropped and counted against
    /// nobody but its sender.
    pub fn receive(&self, _from: u64, _message: Bytes) {}

    /// The transport lost a message to `peer`, or the way to it.
    pub fn report_unreachable(&self, _peer: u64) {}

    /// Asks `to` to take over and waits until this member follows it. Proposals wait meanwhile.
    pub async fn transfer_leadership(&self, _to: u64) -> Result<(), TransferError> {
        Err(TransferError::Stopped)
    }

    /// Gives leadership to the voter whose log is furthest. `Ok` at once when this member does not lead.
    pub async fn hand_over(&self) -> Result<(), TransferError> {
        Err(TransferError::Stopped)
    }

    /// Stops the threads after what is being written; waiting callers get `Stopped`. Returns at once, see
    /// [`crate::Threads::join`].
    pub fn stop(&self) {}
}
