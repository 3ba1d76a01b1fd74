//! What theory says: the fixed point of the fluid model of DCQCN with the parameters of the paper.
//!
//! In units of packets: capacity in packets per second, increases in packets per second, the byte counter in packets.

use dcqcn::Params;
use fabric::switched::Red;

/// N equal flows behind one port.
#[derive(Clone, Copy, Debug)]
pub struct Incast {
    /// How many.
    pub flows: usize,
    /// Rate of the port, in bits per second.
    pub rate_bps: f64,
    /// Bytes of a packet on the cable.
    pub packet: f64,
}

/// Where everything comes to rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    /// Part of the packets that are marked.
    pub marked: f64,
    /// Alpha of each flow.
    pub alpha: f64,
    /// Bytes in the queue.
    pub queue: f64,
}

impl Incast {
    /// The fixed point; `None` where there is none below a mark on every packet.
    #[must_use]
    pub fn fixed_point(&self, params: &Params, red: &Red) -> Option<FixedPoint> {
        let bits = self.packet * 8.0;
        let rate = self.rate_bps / bits / self.flows as f64;
        let increase = params.ai_rate.bps() / bits;
        let counter = params.byte_reset_bytes as f64 / self.packet;
        let stages = f64::from(params.threshold);
        let [interval, decay, timer] =
            [params.cnp_interval, params.alpha_period, params.time_reset].map(wire::Duration::as_secs_f64);
        let none = |p: f64, packets: f64| (packets * (-p).ln_1p()).exp();
        let alpha = |p| 1.0 - none(p, decay * rate);
        // Rises with the probability of a mark.
        let excess = |p: f64| {
            let a = 1.0 - none(p, interval * rate);
            let b = p / (none(p, -counter) - 1.0);
            let c = none(p, stages * counter) * b;
            let d = p / (none(p, -timer * rate) - 1.0);
            let e = none(p, stages * timer * rate) * d;
            a * a * alpha(p) / ((b + d) * (c + e)) - interval * interval * increase * rate
        };
        let (mut low, mut high) = (1e-9, 0.5);
        // What overflows is far above; not a number where both sides of a quotient vanish.
        let is_above = |p| excess(p).is_nan() || excess(p) > 0.0;
        if is_above(low) || !is_above(high) {
            return None;
        }
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            if is_above(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        let marked = f64::midpoint(low, high);
        let (kmin, kmax) = (red.kmin as f64, red.kmax as f64);
        let queue = if marked <= red.pmax { kmin + marked / red.pmax * (kmax - kmin) } else { kmax };
        Some(FixedPoint { marked, alpha: alpha(marked), queue })
    }
}

#[cfg(test)]
mod tests {
    use fabric::switched::MarkAt;

    use super::*;

    /// The table of the paper's set-up: flows, probability, alpha, queue in KB.
    #[test]
    fn the_fixed_points_are_those_of_the_fluid_model() {
        let red = Red { kmin: 5_000, kmax: 200_000, pmax: 0.01, at: MarkAt::Dequeue };
        for (flows, marked, alpha, queue) in [
            (2, 0.000_777, 0.10136, 20.15),
            (4, 0.001_888, 0.12182, 41.81),
            (8, 0.004_552, 0.14516, 93.77),
            (10, 0.006_032, 0.15328, 122.62),
            (12, 0.007_586, 0.16012, 152.92),
            (16, 0.010_873, 0.17130, 200.0),
            (20, 0.014_353, 0.18027, 200.0),
        ] {
            let incast = Incast { flows, rate_bps: 40e9, packet: 1_000.0 };
            let found = incast.fixed_point(&Params::PAPER, &red).unwrap();
            assert!((found.marked - marked).abs() < 1e-6, "{flows}: {found:?}");
            assert!((found.alpha - alpha).abs() < 1e-5, "{flows}: {found:?}");
            assert!((found.queue / 1e3 - queue).abs() < 0.01, "{flows}: {found:?}");
        }
    }
}
