//! Groups the events of a watch into whole revisions.
//!
//! * Events arrive in order. A response with `fragment` set continues in the following response, so its last
//!   revision may be incomplete.
//! * Events of an incomplete revision are buffered, up to a limit.

use api::etcdserverpb::WatchResponse;
use api::mvccpb::Event;

/// Maximum size of the events of a revision, and of a response. A client's revision has at most
/// `--max-request-bytes`, 1.5 MiB by default, but a range delete has an event for each key: 512 MiB are five
/// million keys of 60 bytes.
pub const REVISION_BYTES_MAX: usize = 512 << 20;
/// Memory overhead of an event, without key and value.
pub const EVENT_BYTES: usize = 192;

/// Inconsistent or oversized events.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsError {
    #[error("an event without a key-value pair")]
    Empty,
    #[error("an event of revision {found} after one of revision {last}")]
    Order { last: i64, found: i64 },
    #[error(
        "revision {revision} has more than {REVISION_BYTES_MAX} bytes of events: import a snapshot that was \
         saved after it, with --from"
    )]
    TooLarge { revision: i64 },
}

/// Events of a revision, in order.
#[derive(Debug, Default, PartialEq)]
pub struct WholeRevision {
    pub revision: i64,
    pub events: Vec<Event>,
}

/// Buffered events of an incomplete revision.
#[derive(Debug, Default)]
pub struct Revisions {
    pending: WholeRevision,
    bytes: usize,
}

impl Revisions {
    /// Consumes a response, and passes each completed revision to `whole`.
    pub fn take<E: From<EventsError>>(
        &mut self,
        response: WatchResponse,
        mut whole: impl FnMut(WholeRevision) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_continued = response.fragment;
        for event in response.events {
            let revision = event.kv.as_ref().ok_or(EventsError::Empty)?.mod_revision;
            if revision != self.pending.revision {
                if revision < self.pending.revision {
                    return Err(EventsError::Order { last: self.pending.revision, found: revision }.into());
                }
                let before = std::mem::take(&mut self.pending);
                self.bytes = 0;
                self.pending.revision = revision;
                if !before.events.is_empty() {
                    whole(before)?;
                }
            }
            self.bytes += bytes_of(&event);
            if self.bytes > REVISION_BYTES_MAX {
                return Err(EventsError::TooLarge { revision }.into());
            }
            self.pending.events.push(event);
        }
        if !is_continued && !self.pending.events.is_empty() {
            let revision = self.pending.revision;
            let last = std::mem::replace(&mut self.pending, WholeRevision { revision, events: Vec::new() });
            self.bytes = 0;
            whole(last)?;
        }
        Ok(())
    }
}

fn bytes_of(event: &Event) -> usize {
    EVENT_BYTES + event.kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len())
}

#[cfg(test)]
mod tests {
    use api::mvccpb::KeyValue;

    use super::*;

    /// Format: `5 5 6 +` are events of these revisions; `+` means that the next response continues them.
    fn response(text: &str) -> WatchResponse {
        let revisions = text.split_whitespace().filter(|word| *word != "+");
        let event = |word: &str| {
            let kv = KeyValue { mod_revision: word.parse().unwrap(), ..KeyValue::default() };
            Event { kv: Some(kv), ..Event::default() }
        };
        WatchResponse {
            events: revisions.map(event).collect(),
            fragment: text.contains('+'),
            ..WatchResponse::default()
        }
    }

    #[test]
    fn a_revision_is_handed_out_when_it_is_whole() {
        for (responses, wanted) in [
            ("2 | 3", "2x1 | 3x1"),
            ("2 2 3 | 4", "2x2 3x1 | 4x1"),
            ("2 2 + | 2 3 + | 3", " | 2x3 | 3x2"),
            ("2 + | ", " | 2x1"),
            ("2 + | 3", " | 2x1 3x1"),
            ("", ""),
            ("3 | 2", "3x1 | an event of revision 2 after one of revision 3"),
            ("2 | 2", "2x1 | 2x1"),
        ] {
            let mut revisions = Revisions::default();
            let answers = responses.split('|').map(|text| {
                let mut found = Vec::new();
                let taken = revisions.take(response(text), |whole| {
                    found.push(format!("{}x{}", whole.revision, whole.events.len()));
                    Ok::<(), EventsError>(())
                });
                taken.map_or_else(|error| error.to_string(), |()| found.join(" "))
            });
            assert_eq!(answers.collect::<Vec<_>>().join(" | "), wanted, "{responses}");
        }
    }

    #[test]
    fn a_revision_beyond_the_limit_is_refused() {
        let value = bytes::Bytes::from(vec![0; 64 << 20]);
        let kv = KeyValue { mod_revision: 7, value, ..KeyValue::default() };
        let event = Event { kv: Some(kv), ..Event::default() };
        let mut revisions = Revisions::default();
        let mut take = || {
            let response =
                WatchResponse { events: vec![event.clone()], fragment: true, ..WatchResponse::default() };
            revisions.take(response, |_| Ok::<(), EventsError>(()))
        };
        for _ in 0..7 {
            assert_eq!(take(), Ok(()));
        }
        assert_eq!(take(), Err(EventsError::TooLarge { revision: 7 }));
    }
}
