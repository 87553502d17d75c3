//! Who counts the messages of a call.

/// Counts the messages of a call.
pub trait MessageObserver: Send + Sync + 'static {
    /// A message came in.
    fn received(&self, bytes: usize);
    /// Some of the bytes of messages were sent, and so many messages began in them.
    fn sent(&self, messages: usize, bytes: usize);
}
