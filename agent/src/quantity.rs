//! Kubernetes quantities: `2`, `500m`, `4Gi`, `1.5G`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use std::collections::BTreeMap;

/// Amounts by resource name, as in a Node's status.
pub(crate) type ResourceList = BTreeMap<String, Quantity>;

/// A quantity in thousandths of its unit, rounded up; `None` if it cannot be parsed or does not fit.
pub(crate) fn milli(quantity: &Quantity) -> Option<u64> {
    scaled(quantity, 1000)
}

/// A quantity in whole units, rounded up.
pub(crate) fn whole(quantity: &Quantity) -> Option<u64> {
    scaled(quantity, 1)
}

fn scaled(quantity: &Quantity, parts: u128) -> Option<u64> {
    let text = quantity.0.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Kubernetes keeps nine decimal places.
    if whole.len() + fraction.len() == 0 || fraction.len() > 9 {
        return None;
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (base, power): (u128, i32) = match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        exponent => (10, exponent.strip_prefix(['e', 'E'])?.parse().ok().filter(|e| (-18..=18).contains(e))?),
    };
    let up = base.checked_pow(power.max(0).unsigned_abs())?;
    let down = base
        .checked_pow(power.min(0).unsigned_abs())?
        .checked_mul(10u128.pow(u32::try_from(fraction.len()).ok()?))?;
    mantissa.checked_mul(up)?.checked_mul(parts)?.div_ceil(down).try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_parsed_as_kubernetes_writes_them() {
        let table = [
            ("2", Some(2000)),
            ("500m", Some(500)),
            ("1.5", Some(1500)),
            ("0.1", Some(100)),
            ("100u", Some(1)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("1E", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.5x", None),
            ("99999999999999999999Ei", None),
        ];
        for (text, expected) in table {
            assert_eq!(milli(&Quantity(text.to_owned())), expected, "{text}");
        }
        assert_eq!(whole(&Quantity("500m".into())), Some(1));
        assert_eq!(whole(&Quantity("1Ei".into())), Some(1 << 60), "more than fits in thousandths");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9.eEikKmMgG+-]{0,12}") {
            let _ = milli(&Quantity(text));
        }

        #[test]
        fn a_whole_number_is_parsed_as_it_is(number in 0u64..1 << 40) {
            prop_assert_eq!(whole(&Quantity(number.to_string())), Some(number));
        }
    }
}
