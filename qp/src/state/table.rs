//! The transition table as data (rules R-QPS-3 to R-QPS-8, R-QPS-19, R-QPS-22 to R-QPS-25), its check, and the graph
//! drawn from it.

use std::fmt::Write as _;

use super::{AttrMask, ModifyError, QpState, QpType};

/// One row: the attributes of a transition of one queue pair type.
struct Row {
    qp_type: QpType,
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
}

/// The attribute of each letter that the rows below are written in.
const LETTERS: [(u8, AttrMask); 19] = [
    (b'K', AttrMask::PKEY_INDEX),
    (b'P', AttrMask::PORT),
    (b'A', AttrMask::ACCESS_FLAGS),
    (b'Q', AttrMask::QKEY),
    (b'V', AttrMask::AV),
    (b'M', AttrMask::PATH_MTU),
    (b'D', AttrMask::DEST_QPN),
    (b'R', AttrMask::RQ_PSN),
    (b'X', AttrMask::MAX_DEST_RD_ATOMIC),
    (b'N', AttrMask::MIN_RNR_TIMER),
    (b'T', AttrMask::TIMEOUT),
    (b'C', AttrMask::RETRY_CNT),
    (b'W', AttrMask::RNR_RETRY),
    (b'S', AttrMask::SQ_PSN),
    (b'O', AttrMask::MAX_QP_RD_ATOMIC),
    (b'L', AttrMask::ALT_PATH),
    (b'G', AttrMask::PATH_MIG_STATE),
    (b'U', AttrMask::CUR_STATE),
    (b'E', AttrMask::EN_SQD_ASYNC_NOTIFY),
];

/// The mask of a string of letters. An unknown letter fails the build.
const fn mask(letters: &str) -> AttrMask {
    let letters = letters.as_bytes();
    let mut bits = 0;
    let mut i = 0;
    while i < letters.len() {
        let mut j = 0;
        while LETTERS[j].0 != letters[i] {
            j += 1;
        }
        bits |= LETTERS[j].1.bits();
        i += 1;
    }
    AttrMask::from_bits_retain(bits)
}

macro_rules! rows {
    ($( $from:ident -> $to:ident { $($ty:ident: $required:literal $optional:literal;)* } )*) => {
        &[$($( Row {
            qp_type: QpType::$ty,
            from: QpState::$from,
            to: QpState::$to,
            required: mask($required),
            optional: mask($optional),
        } ),*),*]
    };
}

/// Every transition but those to RESET and ERR, which take nothing: type, what it needs, what else it takes.
const ROWS: &[Row] = rows! {
    Reset -> Init {
        Rc: "KPA" "";
        Uc: "KPA" "";
        Ud: "KPQ" "";
        Gsi: "KQ" "";
        XrcIni: "KPA" "";
        XrcTgt: "KPA" "";
    }
    Init -> Init {
        Rc: "" "KPA";
        Uc: "" "KPA";
        Ud: "" "KPQ";
        Gsi: "" "KQ";
        XrcIni: "" "KPA";
        XrcTgt: "" "KPA";
    }
    Init -> Rtr {
        Rc: "VMDRXN" "LAK";
        Uc: "VMDR" "LAK";
        Ud: "" "KQ";
        Gsi: "" "KQ";
        XrcIni: "VMDR" "LAK";
        XrcTgt: "VMDRXN" "LAK";
    }
    Rtr -> Rts {
        Rc: "TCWSO" "ULANG";
        Uc: "S" "ULAG";
        Ud: "S" "UQ";
        Gsi: "S" "UQ";
        XrcIni: "TCWSO" "ULAG";
        XrcTgt: "TS" "ULANG";
    }
    Rts -> Rts {
        Rc: "" "UALGN";
        Uc: "" "UALG";
        Ud: "" "UQ";
        Gsi: "" "UQ";
        XrcIni: "" "UALG";
        XrcTgt: "" "UALGN";
    }
    Rts -> Sqd {
        Rc: "" "E";
        Uc: "" "E";
        Ud: "" "E";
        Gsi: "" "E";
        XrcIni: "" "E";
        XrcTgt: "" "E";
    }
    Sqd -> Rts {
        Rc: "" "ULANG";
        Uc: "" "ULAG";
        Ud: "" "UQ";
        Gsi: "" "UQ";
        XrcIni: "" "ULAG";
        XrcTgt: "" "ULANG";
    }
    Sqd -> Sqd {
        Rc: "" "PVTCWOXLAKNG";
        Uc: "" "VLAKG";
        Ud: "" "KQ";
        Gsi: "" "KQ";
        XrcIni: "" "PVTCWOLAKG";
        XrcTgt: "" "PVTXLAKNG";
    }
    Sqe -> Rts {
        Uc: "" "UA";
        Ud: "" "UQ";
        Gsi: "" "UQ";
    }
};

/// What the transition needs and what else it takes; `None` where there is no such transition.
fn masks(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    match to {
        QpState::Reset => Some((AttrMask::empty(), AttrMask::empty())),
        QpState::Err => (from != QpState::Reset).then_some((AttrMask::empty(), AttrMask::empty())),
        _ => ROWS
            .iter()
            .find(|row| row.qp_type == qp_type && row.from == from && row.to == to)
            .map(|row| (row.required, row.optional)),
    }
}

impl AttrMask {
    /// The least mask that takes a queue pair of `qp_type` to `state` on its way from RESET over INIT and RTR to RTS:
    /// [`AttrMask::STATE`] and what the step needs (rules R-QPS-3 to R-QPS-5, R-QPS-22 to R-QPS-25). For any other
    /// state, STATE alone.
    #[must_use]
    pub fn to_enter(qp_type: QpType, state: QpState) -> Self {
        let from = match state {
            QpState::Init => QpState::Reset,
            QpState::Rtr => QpState::Init,
            QpState::Rts => QpState::Rtr,
            _ => return Self::STATE,
        };
        masks(qp_type, from, state).map_or(Self::STATE, |(required, _)| required | Self::STATE)
    }
}

/// Whether a queue pair of `qp_type` may go from `from` to `to` with the attributes of `mask` (rule R-QPS-2).
/// The values of the attributes are not looked at.
///
/// # Errors
/// [`ModifyError::NoTransition`], [`ModifyError::Missing`] or [`ModifyError::NotAllowed`].
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), ModifyError> {
    let Some((required, optional)) = masks(qp_type, from, to) else {
        return Err(ModifyError::NoTransition { qp_type, from, to });
    };
    let missing = required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { qp_type, from, to, missing });
    }
    let extra = mask.difference(required | optional | AttrMask::STATE);
    if !extra.is_empty() {
        return Err(ModifyError::NotAllowed { qp_type, from, to, extra });
    }
    Ok(())
}

/// The state graph of `qp_type` in the DOT language. Solid edges are asked for by the user and name what they need;
/// dashed ones are taken by the device after an error.
#[must_use]
pub fn dot(qp_type: QpType) -> String {
    let mut out = format!("digraph {} {{\n", qp_type.name());
    for from in QpState::ALL {
        for to in QpState::ALL {
            let Some((required, _)) = masks(qp_type, from, to) else { continue };
            let label = if required.is_empty() { String::new() } else { format!(" [label=\"{required}\"]") };
            // Writing to a String does not fail.
            let _ = writeln!(out, "    {from} -> {to}{label};");
        }
    }
    if qp_type != QpType::XrcTgt {
        let has_sqe = ROWS.iter().any(|row| row.qp_type == qp_type && row.from == QpState::Sqe);
        let to = if has_sqe { QpState::Sqe } else { QpState::Err };
        let _ = writeln!(out, "    RTS -> {to} [style=dashed, label=\"send error\"];");
    }
    if qp_type != QpType::XrcIni {
        for from in [QpState::Rtr, QpState::Rts] {
            let _ = writeln!(out, "    {from} -> ERR [style=dashed, label=\"receive error\"];");
        }
    }
    out.push_str("}\n");
    out
}
