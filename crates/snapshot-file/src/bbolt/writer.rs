//! Planner and writer of a file.

use super::format::{BUCKET_BYTES, FREELIST, META, META_PAGES, Meta, PAGE_BYTES, PageHeader};
use super::tree::{Pages, Tree, Value, ValueKind};

/// Layout of a planned file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLayout {
    pages: u64,
    root: u64,
}

impl FileLayout {
    /// Returns the size of the file.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }
}

/// Page of the freelist, which is empty.
const FREELIST_PAGE: u64 = META_PAGES;
const FIRST_PAGE: u64 = FREELIST_PAGE + 1;

struct Buckets {
    pages: Pages,
    /// Names and root pages of completed buckets.
    complete: Vec<(Vec<u8>, u64)>,
    open: Option<(Vec<u8>, Tree)>,
}

impl Buckets {
    fn new(out: Option<Vec<u8>>) -> Self {
        Buckets { pages: Pages { next: FIRST_PAGE, out }, complete: Vec::new(), open: None }
    }

    fn begin(&mut self, name: &[u8]) {
        self.close();
        assert!(self.complete.last().is_none_or(|(last, _)| last.as_slice() < name), "buckets ascend");
        self.open = Some((name.to_vec(), Tree::default()));
    }

    fn add(&mut self, key: &[u8], value: Value<'_>) {
        let (_, tree) = self.open.as_mut().expect("a bucket is begun before its keys");
        tree.add(&mut self.pages, key, value, ValueKind::Plain);
    }

    fn close(&mut self) {
        if let Some((name, tree)) = self.open.take() {
            let root = tree.finish(&mut self.pages);
            self.complete.push((name, root));
        }
    }

    fn finish(&mut self) -> FileLayout {
        self.close();
        let mut root = Tree::default();
        for (name, page) in &self.complete {
            let mut value = [0; BUCKET_BYTES]; // The second half is a sequence number that etcd does not use.
            value[..8].copy_from_slice(&page.to_le_bytes());
            root.add(&mut self.pages, name, Value::Bytes(&value), ValueKind::Bucket);
        }
        let root = root.finish(&mut self.pages);
        FileLayout { pages: self.pages.next, root }
    }
}

/// Computes the layout of a file from keys and lengths of values.
pub struct Planner(Buckets);

impl Default for Planner {
    fn default() -> Self {
        Planner(Buckets::new(None))
    }
}

impl Planner {
    /// Starts the next bucket. Buckets ascend by name.
    pub fn begin_bucket(&mut self, name: &[u8]) {
        self.0.begin(name);
    }

    /// Adds the next key of the bucket. Keys ascend.
    pub fn add(&mut self, key: &[u8], value_bytes: usize) {
        self.0.add(key, Value::Length(value_bytes));
    }

    pub fn finish(mut self) -> FileLayout {
        self.0.finish()
    }
}

/// Writes a planned file sequentially.
pub struct FileWriter {
    plan: FileLayout,
    buckets: Buckets,
}

impl FileWriter {
    pub fn new(plan: FileLayout) -> Self {
        let mut out = Vec::new();
        for page in 0..META_PAGES {
            PageHeader { id: page, flags: META, count: 0, overflow: 0 }.write(&mut out);
            let (root, pages) = (plan.root, plan.pages);
            let page_bytes = PAGE_BYTES as u32;
            Meta { page_bytes, root, freelist: FREELIST_PAGE, pages, txid: page }.write(&mut out);
            out.resize((page as usize + 1) * PAGE_BYTES, 0);
        }
        PageHeader { id: FREELIST_PAGE, flags: FREELIST, count: 0, overflow: 0 }.write(&mut out);
        out.resize(FIRST_PAGE as usize * PAGE_BYTES, 0);
        FileWriter { plan, buckets: Buckets::new(Some(out)) }
    }

    /// Starts the next bucket, see [`Planner::begin_bucket`].
    pub fn begin_bucket(&mut self, name: &[u8]) {
        self.buckets.begin(name);
    }

    /// Adds the next key, see [`Planner::add`].
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.buckets.add(key, Value::Bytes(value));
    }

    /// Writes the remaining pages. Pending bytes remain available to `take`.
    pub fn finish(&mut self) {
        let written = self.buckets.finish();
        assert_eq!(written, self.plan, "the same keys and lengths were planned");
    }

    /// Returns the number of bytes not yet taken.
    pub fn pending(&self) -> usize {
        self.buckets.pages.out.as_ref().map_or(0, Vec::len)
    }

    /// Takes all pending bytes.
    pub fn take(&mut self) -> Vec<u8> {
        self.buckets.pages.out.replace(Vec::new()).unwrap_or_default()
    }
}
