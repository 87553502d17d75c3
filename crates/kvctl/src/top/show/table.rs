//! Generic tables: sorting, filtering, and fitting to a width.

use std::cmp::Ordering;

/// A column. Columns with a larger rank are dropped first on a narrow screen.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub width: u16,
    pub rank: u8,
    pub is_left: bool,
}

impl Column {
    /// Creates a left-aligned text column.
    pub const fn text(name: &'static str, width: u16, rank: u8) -> Column {
        Column { name, width, rank, is_left: true }
    }

    /// Creates a right-aligned number column.
    pub const fn figure(name: &'static str, width: u16, rank: u8) -> Column {
        Column { name, width, rank, is_left: false }
    }
}

/// Sort key of a cell. Unknown values are last in either order.
#[derive(Clone, Debug, PartialEq)]
pub enum SortKey {
    Text(String),
    Figure(f64),
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    pub key: SortKey,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        let text = text.into();
        Cell { key: SortKey::Text(text.to_lowercase()), text }
    }

    pub fn figure(value: Option<f64>, format: fn(f64) -> String) -> Cell {
        match value {
            Some(value) if value.is_finite() => Cell { text: format(value), key: SortKey::Figure(value) },
            _ => Cell { text: super::format::UNKNOWN.to_owned(), key: SortKey::Unknown },
        }
    }
}

/// Severity of a row. Colors do not add information to its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Plain,
    Good,
    Bad,
    Faint,
}

#[derive(Clone, Debug, Default)]
pub struct TableRow {
    pub cells: Vec<Cell>,
    pub mood: Mood,
    /// Text that replaces the cells from the second column on.
    pub instead: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Table {
    pub title: &'static str,
    pub columns: &'static [Column],
    pub rows: Vec<TableRow>,
    /// Text of an empty table.
    pub empty: &'static str,
}

/// Sort order of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub column: usize,
    /// By default, texts are ascending and numbers descending.
    pub is_reversed: bool,
}

fn compare(a: &SortKey, b: &SortKey, is_reversed: bool) -> Ordering {
    let ordered = match (a, b) {
        (SortKey::Unknown, SortKey::Unknown) => return Ordering::Equal,
        (SortKey::Unknown, _) => return Ordering::Greater,
        (_, SortKey::Unknown) => return Ordering::Less,
        (SortKey::Text(a), SortKey::Text(b)) => a.cmp(b),
        (SortKey::Figure(a), SortKey::Figure(b)) => b.total_cmp(a),
        (SortKey::Text(_), SortKey::Figure(_)) => Ordering::Less,
        (SortKey::Figure(_), SortKey::Text(_)) => Ordering::Greater,
    };
    if is_reversed { ordered.reverse() } else { ordered }
}

impl TableRow {
    /// Reports whether the row contains `wanted`, which must be lowercase.
    fn has(&self, wanted: &str) -> bool {
        let instead = self.instead.iter().map(String::as_str);
        let mut texts = self.cells.iter().map(|cell| cell.text.as_str()).chain(instead);
        texts.any(|text| text.to_lowercase().contains(wanted))
    }
}

impl Table {
    pub fn sort(&mut self, order: Order) {
        let key =
            |row: &TableRow| row.cells.get(order.column).map_or(SortKey::Unknown, |cell| cell.key.clone());
        self.rows.sort_by(|a, b| compare(&key(a), &key(b), order.is_reversed));
    }

    /// Retains rows that contain the text, ignoring case.
    pub fn filter(&mut self, text: &str) {
        let wanted = text.to_lowercase();
        self.rows.retain(|row| row.has(&wanted));
    }

    /// Returns positions and widths of the columns that fit, with a gap of one between them. The first column
    /// gets the remaining width, up to its longest text.
    pub fn fit(&self, width: u16) -> Vec<(usize, u16)> {
        let mut by_rank: Vec<usize> = (0..self.columns.len()).collect();
        by_rank.sort_by_key(|at| (self.columns[*at].rank, *at));
        let mut left = width;
        let mut kept: Vec<(usize, u16)> = Vec::new();
        for at in by_rank {
            let gap = u16::from(!kept.is_empty());
            match left.checked_sub(self.columns[at].width.saturating_add(gap)) {
                Some(rest) => {
                    kept.push((at, self.columns[at].width));
                    left = rest;
                }
                // Rows are useless without the first column, their name.
                None if at == 0 => break,
                None => {}
            }
        }
        kept.sort_unstable();
        if let Some((0, width)) = kept.first_mut() {
            let longest =
                self.rows.iter().filter_map(|row| row.cells.first()).map(|it| it.text.chars().count());
            let wanted = u16::try_from(longest.max().unwrap_or_default()).unwrap_or(u16::MAX);
            *width += wanted.saturating_sub(*width).min(left);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::number;
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::text("NAME", 5, 0), Column::figure("A", 5, 2), Column::figure("B", 5, 1)];

    fn table(rows: &[(&str, Option<f64>)]) -> Table {
        let row = |(name, figure): &(&str, Option<f64>)| TableRow {
            cells: vec![Cell::text(*name), Cell::figure(*figure, number)],
            ..TableRow::default()
        };
        Table { title: "", columns: &COLUMNS, rows: rows.iter().map(row).collect(), empty: "" }
    }

    fn names(table: &Table) -> String {
        table.rows.iter().map(|row| row.cells[0].text.as_str()).collect()
    }

    #[test]
    fn unknown_figures_are_last_in_either_order() {
        let rows = [("c", None), ("B", Some(1.0)), ("a", Some(2.0)), ("d", Some(f64::NAN))];
        for (column, is_reversed, wanted) in
            [(0, false, "aBcd"), (0, true, "dcBa"), (1, false, "aBcd"), (1, true, "Bacd"), (2, false, "cBad")]
        {
            let mut table = table(&rows);
            table.sort(Order { column, is_reversed });
            assert_eq!(names(&table), wanted, "{column} {is_reversed}");
        }
    }

    #[test]
    fn a_filter_looks_at_all_texts() {
        for (text, wanted) in [("", "abc"), ("B", "b"), ("1,2", "a"), ("down", "c"), ("x", "")] {
            let mut table = table(&[("a", Some(1234.0)), ("b", None), ("c", None)]);
            table.rows[2].instead = Some("DOWN".to_owned());
            table.filter(text);
            assert_eq!(names(&table), wanted, "{text}");
        }
    }

    #[test]
    fn columns_of_a_low_rank_are_dropped_first() {
        let table = table(&[("a long name", None)]);
        for (width, wanted) in [
            (0, vec![]),
            (4, vec![]),
            (5, vec![(0, 5)]),
            (11, vec![(0, 5), (2, 5)]),
            (14, vec![(0, 8), (2, 5)]),
            (17, vec![(0, 5), (1, 5), (2, 5)]),
            (u16::MAX, vec![(0, 11), (1, 5), (2, 5)]),
        ] {
            assert_eq!(table.fit(width), wanted, "{width}");
        }
    }
}
