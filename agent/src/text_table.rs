//! Text in columns, as `kubectl` prints it.

/// Aligns all columns but the last.
pub(crate) fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            text.push_str(cell);
            if column + 1 < N {
                text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_the_last_has_no_end() {
        let lines = [["A", "BB", "C"], ["äöü", "", "d"]].map(|line| line.map(str::to_owned));
        assert_eq!(columns(&lines), "A     BB   C\näöü        d\n");
    }
}
