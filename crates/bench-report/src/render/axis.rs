//! Axes: range, ticks, and the position of a value.
//!
//! Independent of SVG.

use crate::number;
use crate::page::Scale;

/// More labels collide in a plot of a phone's width.
const TICKS_MAX: usize = 6;
/// Margin above the greatest value of a linear axis, so that the line does not touch the frame.
const HEADROOM: f64 = 1.04;

/// Range of all plausible measurements, within which steps between ticks are computed exactly.
const VALUE_MIN: f64 = 1e-200;
const VALUE_MAX: f64 = 1e200;
/// Limit of 1 / (1 − q): further nines are not shown.
const PERCENTILE_MAX: f64 = 1e12;

#[derive(Clone, Debug)]
pub struct FittedAxis {
    scale: Scale,
    least: f64,
    greatest: f64,
    pub ticks: Vec<Tick>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub value: f64,
    pub label: String,
}

impl FittedAxis {
    /// Returns an axis for all `values` that its scale can represent.
    pub fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let shown = values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0));
        let (least, greatest) = shown.fold((f64::INFINITY, 0.0_f64), |(least, greatest), value| {
            (least.min(value), greatest.max(value))
        });
        match scale {
            Scale::Linear => Self::linear(greatest),
            Scale::Log => Self::log(least, greatest),
            Scale::Percentile => Self::percentile(greatest),
        }
    }

    fn linear(greatest: f64) -> Self {
        let greatest = if greatest > VALUE_MIN { greatest.min(VALUE_MAX) * HEADROOM } else { 1.0 };
        let step = round_step(greatest / 5.0);
        let steps = (greatest / step).floor() as usize;
        let tick = |n| Tick { value: n as f64 * step, label: number::tick(tidy(n as f64 * step)) };
        Self { scale: Scale::Linear, least: 0.0, greatest, ticks: (0..=steps).map(tick).collect() }
    }

    /// Places ticks at 1, 2, 5 within decades, or 1 and 3, or whole decades.
    fn log(least: f64, greatest: f64) -> Self {
        let (least, greatest) = if least.is_finite() { (least, greatest) } else { (1.0, 10.0) };
        let (least, greatest) = (least.clamp(VALUE_MIN, VALUE_MAX), greatest.clamp(VALUE_MIN, VALUE_MAX));
        let (mut low, mut high) = (least / 1.15, greatest * 1.15);
        if high / low < 4.0 {
            // A small range on a log axis exaggerates, so at least a factor of four is shown.
            let middle = (low * high).sqrt();
            (low, high) = (middle / 2.0, middle * 2.0);
        }
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let candidates = |factors: &[f64]| -> Vec<Tick> {
            let values = decades
                .clone()
                .flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
            let shown = values.filter(|value| (low..=high).contains(value));
            shown.map(|value| Tick { value, label: number::tick(tidy(value)) }).collect()
        };
        // The finest steps that fit.
        let steps: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let mut ticks = Vec::new();
        for step in steps {
            ticks = candidates(step);
            if ticks.len() <= TICKS_MAX {
                break;
            }
        }
        while ticks.len() > TICKS_MAX {
            let mut index = 0;
            ticks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        Self { scale: Scale::Log, least: low, greatest: high, ticks }
    }

    fn percentile(greatest: f64) -> Self {
        let greatest = greatest.clamp(100.0, PERCENTILE_MAX);
        let mut ticks = vec![Tick { value: 1.0, label: "0".into() }];
        let mut value = 10.0;
        let mut nines = String::from("9");
        while value <= greatest * 1.001 {
            let label = match nines.len() {
                1 => "90".to_owned(),
                2 => "99".to_owned(),
                _ => format!("{}.{}", &nines[..2], &nines[2..]),
            };
            ticks.push(Tick { value, label });
            value *= 10.0;
            nines.push('9');
        }
        Self { scale: Scale::Percentile, least: 1.0, greatest, ticks }
    }

    /// Returns the position of a value: 0 at the least end, 1 at the greatest, clamped to both.
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.least) / (self.greatest - self.least),
            Scale::Log | Scale::Percentile => (value / self.least).ln() / (self.greatest / self.least).ln(),
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }
}

/// Returns the next of 1, 2, 2.5, 5 × 10ⁿ.
fn round_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    let found = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * decade >= least * 0.999);
    found.unwrap_or(10.0) * decade
}

/// Removes floating-point rounding errors.
fn tidy(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 4.0);
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> String {
        let fitted = FittedAxis::new(scale, values.iter().copied());
        fitted.ticks.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn an_axis_of_extreme_values_has_few_ticks() {
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            for value in [5e-324, 1e-310, f64::MIN_POSITIVE, 1e200, f64::MAX, f64::INFINITY, f64::NAN, -1.0] {
                let fitted = FittedAxis::new(scale, [value].into_iter());
                assert!(fitted.ticks.len() <= 13, "{scale:?} {value:e}: {}", fitted.ticks.len());
                assert!((0.0..=1.0).contains(&fitted.place(value)), "{scale:?} {value:e}");
            }
            let fitted = FittedAxis::new(scale, [5e-324, f64::MAX].into_iter());
            assert!(fitted.ticks.len() <= 13, "{scale:?}: {}", fitted.ticks.len());
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (scale, values, expected) in [
            (Scale::Linear, &[0.0, 9.0][..], "0 | 2 | 4 | 6 | 8"),
            (Scale::Linear, &[44_000.0], "0 | 10k | 20k | 30k | 40k"),
            (Scale::Linear, &[0.31], "0 | 0.1 | 0.2 | 0.3"),
            (Scale::Linear, &[], "0 | 0.2 | 0.4 | 0.6 | 0.8 | 1"),
            (Scale::Log, &[100.0, 180_000.0], "100 | 1,000 | 10k | 100k"),
            (Scale::Log, &[0.05, 5.0], "0.1 | 0.3 | 1 | 3"),
            (Scale::Log, &[3.0, 30.0], "5 | 10 | 20"),
            (Scale::Log, &[7.0, 7.1], "5 | 10"),
            (Scale::Log, &[], "1 | 2 | 5 | 10"),
            (Scale::Percentile, &[1.0, 20_000.0], "0 | 90 | 99 | 99.9 | 99.99"),
            (Scale::Percentile, &[1.0, 2.0], "0 | 90 | 99"),
        ] {
            assert_eq!(labels(scale, values), expected, "{scale:?} {values:?}");
        }
    }

    #[test]
    fn positions_run_from_zero_to_one() {
        let percentile = FittedAxis::new(Scale::Percentile, [1.0, 10_000.0].into_iter());
        assert_eq!((percentile.place(1.0), percentile.place(100.0), percentile.place(1e9)), (0.0, 0.5, 1.0));
        let linear = FittedAxis::new(Scale::Linear, [100.0].into_iter());
        assert!((linear.place(52.0) - 0.5).abs() < 1e-9);
        assert_eq!((linear.place(f64::NAN), linear.place(-1.0)), (0.0, 0.0));
    }
}
