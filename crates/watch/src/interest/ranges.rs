//! Interval tree that finds all ranges containing a key.
//!
//! A balanced (AVL) tree ordered by start. Each node stores the greatest end of its subtree, so a
//! search skips subtrees that end before the key. Nodes refer to groups, which hold the keys.
//!
//! Invariants:
//! - The heights of two siblings differ by at most one, so adversarial ranges do not degrade a
//!   search.
//! - `latest` is a group with the greatest end in the subtree.

use std::cmp::Ordering;

use super::group::InterestGroup;
use crate::slab::Slab;

const NONE: u32 = u32::MAX;

struct RangeNode {
    group: u32,
    left: u32,
    right: u32,
    latest: u32,
    height: u8,
}

/// The tree. Its functions take the groups, because nodes hold only their numbers.
pub(super) struct Ranges {
    nodes: Slab<RangeNode>,
    root: u32,
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges { nodes: Slab::default(), root: NONE }
    }
}

impl Ranges {
    pub fn find(&self, groups: &Slab<InterestGroup>, wanted: &InterestGroup) -> Option<u32> {
        let mut at = self.root;
        while at != NONE {
            let node = &self.nodes[at];
            at = match wanted.order(&groups[node.group]) {
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
                Ordering::Equal => return Some(node.group),
            };
        }
        None
    }

    pub fn insert(&mut self, groups: &Slab<InterestGroup>, group: u32) {
        self.root = self.insert_at(groups, self.root, group);
    }

    pub fn remove(&mut self, groups: &Slab<InterestGroup>, group: u32) {
        self.root = self.remove_at(groups, self.root, group);
    }

    /// Calls `visit` with the groups whose range contains `key`, in the order of their starts.
    pub fn visit(&self, groups: &Slab<InterestGroup>, key: &[u8], visit: &mut impl FnMut(u32)) {
        self.visit_at(groups, self.root, key, visit);
    }

    /// Visits a subtree. The recursion depth is at most 1.44 times the logarithm of the tree size.
    fn visit_at(&self, groups: &Slab<InterestGroup>, at: u32, key: &[u8], visit: &mut impl FnMut(u32)) {
        if at == NONE {
            return;
        }
        let node = &self.nodes[at];
        if !groups[node.latest].is_before_end(key) {
            return;
        }
        self.visit_at(groups, node.left, key, visit);
        let group = &groups[node.group];
        if group.start() <= key {
            if group.is_before_end(key) {
                visit(node.group);
            }
            self.visit_at(groups, node.right, key, visit);
        }
    }

    fn insert_at(&mut self, groups: &Slab<InterestGroup>, at: u32, group: u32) -> u32 {
        if at == NONE {
            return self.nodes.insert(RangeNode { group, left: NONE, right: NONE, latest: group, height: 1 });
        }
        match groups[group].order(&groups[self.nodes[at].group]) {
            Ordering::Less => {
                let left = self.insert_at(groups, self.nodes[at].left, group);
                self.nodes[at].left = left;
            }
            Ordering::Greater => {
                let right = self.insert_at(groups, self.nodes[at].right, group);
                self.nodes[at].right = right;
            }
            Ordering::Equal => unreachable!("a range is inserted once for each form"),
        }
        self.balance(groups, at)
    }

    fn remove_at(&mut self, groups: &Slab<InterestGroup>, at: u32, group: u32) -> u32 {
        assert!(at != NONE, "a range that is removed is in the tree");
        let (left, right) = (self.nodes[at].left, self.nodes[at].right);
        match groups[group].order(&groups[self.nodes[at].group]) {
            Ordering::Less => {
                let left = self.remove_at(groups, left, group);
                self.nodes[at].left = left;
            }
            Ordering::Greater => {
                let right = self.remove_at(groups, right, group);
                self.nodes[at].right = right;
            }
            Ordering::Equal => {
                if left == NONE || right == NONE {
                    self.nodes.remove(at);
                    return if left == NONE { right } else { left };
                }
                // The next range replaces it.
                let (right, next) = self.remove_first(groups, right);
                self.nodes[at].group = next;
                self.nodes[at].right = right;
            }
        }
        self.balance(groups, at)
    }

    /// Removes the first range of a subtree. Returns the subtree without it, and its group.
    fn remove_first(&mut self, groups: &Slab<InterestGroup>, at: u32) -> (u32, u32) {
        let left = self.nodes[at].left;
        if left == NONE {
            let node = self.nodes.remove(at);
            return (node.right, node.group);
        }
        let (left, group) = self.remove_first(groups, left);
        self.nodes[at].left = left;
        (self.balance(groups, at), group)
    }

    fn height(&self, at: u32) -> u8 {
        if at == NONE { 0 } else { self.nodes[at].height }
    }

    /// Recomputes the height and the greatest end of a node's subtree.
    fn update(&mut self, groups: &Slab<InterestGroup>, at: u32) {
        let node = &self.nodes[at];
        let mut latest = node.group;
        for child in [node.left, node.right] {
            if child == NONE {
                continue;
            }
            let other = self.nodes[child].latest;
            let is_later = match (groups[latest].end(), groups[other].end()) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(latest), Some(other)) => other > latest,
            };
            if is_later {
                latest = other;
            }
        }
        let height = 1 + self.height(node.left).max(self.height(node.right));
        let node = &mut self.nodes[at];
        (node.latest, node.height) = (latest, height);
    }

    /// Restores the balance of a node with balanced subtrees, and returns the new root of the
    /// subtree.
    fn balance(&mut self, groups: &Slab<InterestGroup>, at: u32) -> u32 {
        let (left, right) = (self.nodes[at].left, self.nodes[at].right);
        let (left_height, right_height) = (self.height(left), self.height(right));
        if left_height > right_height + 1 {
            if self.height(self.nodes[left].right) > self.height(self.nodes[left].left) {
                let left = self.rotate_left(groups, left);
                self.nodes[at].left = left;
            }
            return self.rotate_right(groups, at);
        }
        if right_height > left_height + 1 {
            if self.height(self.nodes[right].left) > self.height(self.nodes[right].right) {
                let right = self.rotate_right(groups, right);
                self.nodes[at].right = right;
            }
            return self.rotate_left(groups, at);
        }
        self.update(groups, at);
        at
    }

    fn rotate_left(&mut self, groups: &Slab<InterestGroup>, at: u32) -> u32 {
        let root = self.nodes[at].right;
        self.nodes[at].right = self.nodes[root].left;
        self.nodes[root].left = at;
        self.update(groups, at);
        self.update(groups, root);
        root
    }

    fn rotate_right(&mut self, groups: &Slab<InterestGroup>, at: u32) -> u32 {
        let root = self.nodes[at].left;
        self.nodes[at].left = self.nodes[root].right;
        self.nodes[root].right = at;
        self.update(groups, at);
        self.update(groups, root);
        root
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::interest::Form;

    fn check_balance(tree: &Ranges, at: u32) -> u8 {
        if at == NONE {
            return 0;
        }
        let node = &tree.nodes[at];
        let (left, right) = (check_balance(tree, node.left), check_balance(tree, node.right));
        assert!(left.abs_diff(right) <= 1, "unbalanced");
        assert_eq!(node.height, 1 + left.max(right));
        node.height
    }

    proptest! {
        #[test]
        fn a_search_finds_the_ranges_that_contain_a_key(
            changes in prop::collection::vec((any::<bool>(), 0u8..12, 0u8..14), 1..200),
        ) {
            let (mut tree, mut groups) = (Ranges::default(), Slab::default());
            let mut model: Vec<(u8, u8, u32)> = Vec::new();
            for (is_insert, start, end) in changes {
                // 13 is a range without end.
                let end_key = if end == 13 { vec![0] } else { vec![b'a' + end] };
                let form = Form::new(false, false, false, false);
                let group = InterestGroup::new(&[b'a' + start], &end_key, form);
                let known = model.iter().position(|(s, e, _)| (*s, *e) == (start, end));
                prop_assert_eq!(tree.find(&groups, &group), known.map(|at| model[at].2));
                match known {
                    None if is_insert => {
                        let slot = groups.insert(group);
                        tree.insert(&groups, slot);
                        model.push((start, end, slot));
                    }
                    Some(at) if !is_insert => {
                        let (_, _, slot) = model.swap_remove(at);
                        tree.remove(&groups, slot);
                        groups.remove(slot);
                    }
                    _ => {}
                }
                check_balance(&tree, tree.root);
                for key in 0u8..14 {
                    let mut found = Vec::new();
                    tree.visit(&groups, &[b'a' + key], &mut |group| found.push(group));
                    found.sort_unstable();
                    let contains = |(s, e, _): &&(u8, u8, u32)| *s <= key && (*e == 13 || key < *e);
                    let mut expected: Vec<u32> = model.iter().filter(contains).map(|range| range.2).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
