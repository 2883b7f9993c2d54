package dev.chagres.drawn;

import dev.chagres.conformance.TokenRows;
import dev.chagres.te.QkvFormat;
import java.util.Collections;
import java.util.List;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.arbitraries.ListArbitrary;

/** Draws how sequences lie. */
final class DrawnTokens {
    private static final int MOST_SEQUENCES = 4;
    private static final int LONGEST = 19;
    private static final int WIDEST_GAP = 5;

    private DrawnTokens() {}

    /** Packed sequences with and without gaps, full and padded batches. */
    static Arbitrary<TokenRows> any() {
        return Arbitraries.oneOf(packed(), gapped(packed()), batches());
    }

    /** Full and padded batches. */
    static Arbitrary<TokenRows> batches() {
        return Arbitraries.oneOf(dense(), padded());
    }

    /** As many sequences of keys as {@code queries} has, in the same format. */
    static Arbitrary<TokenRows> keysFor(TokenRows queries) {
        int sequences = queries.lengths().size();
        Arbitrary<List<Integer>> lengths = lengths(0).ofSize(sequences).filter(DrawnTokens::hasToken);
        if (queries.format() == QkvFormat.THD) {
            Arbitrary<TokenRows> packed = lengths.map(each -> new TokenRows(QkvFormat.THD, each, 0));
            return Arbitraries.oneOf(packed, gapped(packed));
        }
        Arbitrary<TokenRows> full = Arbitraries.integers()
                .between(1, LONGEST)
                .map(length -> new TokenRows(queries.format(), Collections.nCopies(sequences, length), length));
        return Arbitraries.oneOf(full, lengths.flatMap(each -> padded(queries.format(), each)));
    }

    private static boolean hasToken(List<Integer> lengths) {
        return lengths.stream().anyMatch(length -> length > 0);
    }

    private static ListArbitrary<Integer> lengths(int shortest) {
        return Arbitraries.integers().between(shortest, LONGEST).list();
    }

    private static Arbitrary<TokenRows> packed() {
        return lengths(0)
                .ofMinSize(1)
                .ofMaxSize(MOST_SEQUENCES)
                .filter(DrawnTokens::hasToken)
                .map(lengths -> new TokenRows(QkvFormat.THD, lengths, 0));
    }

    private static Arbitrary<TokenRows> gapped(Arbitrary<TokenRows> packed) {
        return packed.flatMap(rows -> Arbitraries.integers()
                .between(0, WIDEST_GAP)
                .list()
                .ofSize(rows.lengths().size())
                .map(gaps -> new TokenRows(QkvFormat.THD, rows.lengths(), 0, gaps)));
    }

    private static Arbitrary<TokenRows> dense() {
        return Combinators.combine(
                        Arbitraries.of(QkvFormat.BSHD, QkvFormat.SBHD),
                        Arbitraries.integers().between(1, MOST_SEQUENCES),
                        Arbitraries.integers().between(1, LONGEST))
                .as((format, batch, length) -> new TokenRows(format, Collections.nCopies(batch, length), length));
    }

    private static Arbitrary<TokenRows> padded() {
        return Arbitraries.of(QkvFormat.BSHD, QkvFormat.SBHD)
                .flatMap(format ->
                        lengths(1).ofMinSize(1).ofMaxSize(MOST_SEQUENCES).flatMap(lengths -> padded(format, lengths)));
    }

    private static Arbitrary<TokenRows> padded(QkvFormat format, List<Integer> lengths) {
        return Arbitraries.integers()
                .between(0, WIDEST_GAP)
                .map(more -> new TokenRows(format, lengths, Collections.max(lengths) + more));
    }
}
