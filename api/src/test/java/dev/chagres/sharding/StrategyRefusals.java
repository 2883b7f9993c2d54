package dev.chagres.sharding;

import static dev.chagres.sharding.StrategyKind.PP_INTERLEAVED;
import static dev.chagres.sharding.StrategyVariant.PLAIN;

import java.util.List;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * What ranks do not train, and the text that refuses it, with N for each number. Whoever makes one of these train deletes its line, and
 * {@link EveryStrategyTest} trains it.
 */
final class StrategyRefusals {
    /** What is refused, and by which words. */
    private record Refusal(Predicate<StrategyCase> which, String text) {}

    private static final List<Refusal> ALL =
            List.of(on(PP_INTERLEAVED, 1, "stagesPerRank: expected N on a single rank, got N"));

    private StrategyRefusals() {}

    private static Refusal on(StrategyKind kind, int ranks, String text) {
        return new Refusal(StrategyCase.of(kind, ranks, PLAIN)::equals, text);
    }

    /** Returns the text that refuses a case, with N for each number; null where ranks train it. */
    static @Nullable String of(StrategyCase one) {
        return ALL.stream()
                .filter(refusal -> refusal.which.test(one))
                .map(Refusal::text)
                .findFirst()
                .orElse(null);
    }

    /** Returns the texts of refusals that none of {@code cases} is refused by. */
    static List<String> without(List<StrategyCase> cases) {
        return ALL.stream()
                .filter(refusal -> cases.stream().noneMatch(refusal.which))
                .map(Refusal::text)
                .toList();
    }
}
