//! Enums whose values are fixed words: in the API, in metrics, in logs.

/// Declares such an enum. Each variant stands beside its word.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            #[allow(dead_code, reason = "not every such enum is listed")]
            $vis const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];

            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
