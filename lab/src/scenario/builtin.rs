//! The scenarios that are built in.

/// A built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal),+ $(,)?) => {
        /// All of them, in the order in which they are listed.
        pub const BUILTIN: &[Builtin] = &[
            $(Builtin {
                name: $name,
                text: include_str!(concat!("../../scenarios/", $name, ".toml")),
            }),+
        ];
    };
}

builtin![
    "incast",
    "two_flows",
    "parking_lot",
    "victim",
    "pfc_storm",
    "deadlock_ring",
    "kv_burst",
    "kv_ring",
    "kv_class",
    "buffers",
    "ecmp",
    "mtu_mismatch",
    "loss",
    "xrc_memory"
];
