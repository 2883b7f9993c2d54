package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.sharding.StrategyRun.Clipping;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Every strategy on 1, 2, 3, 4 and 8 ranks, every product of two on 4 and 8, and every strategy with each {@link StrategyVariant}: the first
 * steps of a small model of 24 heads, in FP32, are those of one rank that accumulates the same parts of each step, losses within 1e-5,
 * norms of gradients within 1e-4. {@link StrategyRefusals} lists what is refused instead. Two strategies along the same dimension of a mesh
 * have no product: they are values of one setting, of which a program gives one.
 *
 * <p>Which of these numbers have the same bits: {@link StrategyBitsTest}.
 */
@Tag("L0")
@Tag("L2")
class EveryStrategyTest {
    private static final List<Integer> RANKS = List.of(1, 2, 3, 4, 8);
    private static final List<Integer> RANKS_OF_PAIRS = List.of(4, 8);
    private static final StrategyKind LAST = StrategyKind.values()[StrategyKind.values().length - 1];

    /** What the steps of one rank depend on. */
    private record OneRank(StrategyVariant variant, int layers, List<Integer> parts) {
        static OneRank of(StrategyCase one) {
            List<Integer> parts = new ArrayList<>();
            for (int step = 0; step < StrategyRun.STEPS; step++) {
                parts.add(one.dataRanks() * one.microBatches(step));
            }
            return new OneRank(one.variant().onOneRank(), one.layers(), parts);
        }
    }

    private static final Map<OneRank, StrategyRun> OF_ONE_RANK = new ConcurrentHashMap<>();

    @AfterAll
    static void forget() {
        OF_ONE_RANK.clear();
    }

    static List<StrategyCase> strategies() {
        return Arrays.stream(StrategyKind.values())
                .flatMap(kind -> RANKS.stream().map(ranks -> StrategyCase.of(kind, ranks, StrategyVariant.PLAIN)))
                .toList();
    }

    static List<StrategyCase> pairs() {
        List<StrategyCase> cases = new ArrayList<>();
        for (StrategyKind first : StrategyKind.values()) {
            for (StrategyKind second : EnumSet.range(first, LAST)) {
                if (!first.excludes(second)) {
                    RANKS_OF_PAIRS.forEach(ranks -> cases.add(StrategyCase.of(first, second, ranks)));
                }
            }
        }
        return cases;
    }

    static List<StrategyCase> variants() {
        return EnumSet.complementOf(EnumSet.of(StrategyVariant.PLAIN)).stream()
                .flatMap(variant -> Arrays.stream(StrategyKind.values())
                        .map(kind -> StrategyCase.of(kind, variant.ranks(kind), variant)))
                .toList();
    }

    private static void check(StrategyCase one) {
        DevicesNeeded.assume(one.ranks());
        String refusal = StrategyRefusals.of(one);
        if (refusal != null) {
            assertEquals(refusal, refused(one).replaceAll("[0-9]+", "N"));
            return;
        }
        StrategyRun expected =
                OF_ONE_RANK.computeIfAbsent(OneRank.of(one), key -> StrategyRun.ofOne(one, Clipping.TO_ONE));
        expected.assertClose(StrategyRun.ofRanks(one, Clipping.TO_ONE));
    }

    private static String refused(StrategyCase one) {
        RankFailedException failure =
                assertThrows(RankFailedException.class, () -> StrategyRun.ofRanks(one, Clipping.TO_ONE));
        return assertInstanceOf(IllegalArgumentException.class, failure.getCause())
                .getMessage();
    }

    @ParameterizedTest
    @MethodSource("strategies")
    void ranksTakeTheStepsOfOne(StrategyCase one) {
        check(one);
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void ranksOfTwoStrategiesTakeTheStepsOfOne(StrategyCase one) {
        check(one);
    }

    @ParameterizedTest
    @MethodSource("variants")
    void ranksTakeTheStepsOfOneWith(StrategyCase one) {
        check(one);
    }

    /** The error names both numbers. */
    @ParameterizedTest
    @CsvSource({"TP, 5", "TP, 7", "SP, 5", "SP, 7", "CP_ALL_TO_ALL, 5", "CP_ALL_TO_ALL, 7"})
    void headsThatRanksDoNotDivide(StrategyKind kind, int ranks) {
        StrategyCase one = StrategyCase.of(kind, ranks, StrategyVariant.PLAIN);
        DevicesNeeded.assume(ranks);
        assertEquals(
                kind == StrategyKind.CP_ALL_TO_ALL
                        ? "heads: layers.0.attention expected a multiple of the " + ranks
                                + " context-parallel ranks, each of which attends with some of them over all tokens, got"
                                + " 24; withRing() and withAllGather() need no multiple"
                        : "heads: layers.0.attention expected a multiple of the " + ranks
                                + " tensor-parallel ranks, among which they are divided, got 24",
                refused(one));
    }

    /** Ranks that do not split heads need not divide their number. */
    @ParameterizedTest
    @CsvSource({"CP_ALL_GATHER, 5", "CP_RING, 5", "CP_BALANCED_RING, 7", "ZERO3, 5", "PP_1F1B, 5"})
    void ranksThatDivideNoHeads(StrategyKind kind, int ranks) {
        check(StrategyCase.of(kind, ranks, StrategyVariant.PLAIN));
    }

    /** A dimension or a stage that is added has a strategy, or this fails. */
    @Test
    void everySettingHasAStrategy() {
        Set<MeshDimension> dimensions = EnumSet.noneOf(MeshDimension.class);
        Set<ZeroStage> stages = EnumSet.noneOf(ZeroStage.class);
        Set<OptimizerSharding> optimizers = EnumSet.noneOf(OptimizerSharding.class);
        for (StrategyKind kind : StrategyKind.values()) {
            dimensions.addAll(kind.dimensions());
            FullyShardedConfig config = kind.config();
            if (config != null) {
                stages.add(config.stage());
                optimizers.add(config.optimizer());
            }
        }
        assertEquals(EnumSet.allOf(MeshDimension.class), dimensions);
        assertEquals(EnumSet.allOf(ZeroStage.class), stages);
        assertEquals(EnumSet.allOf(OptimizerSharding.class), optimizers);
    }

    /** A strategy or a variant that is added has cases, or this fails. */
    @Test
    void everyStrategyHasItsCases() {
        List<StrategyCase> cases = Stream.of(strategies(), pairs(), variants())
                .flatMap(List::stream)
                .toList();
        assertEquals(cases.size(), Set.copyOf(cases).size(), "no case twice");
        assertEquals(List.of(), StrategyRefusals.without(cases), "refusals of no case");
        for (StrategyKind kind : StrategyKind.values()) {
            assertEquals(RANKS, ranks(cases, List.of(kind), StrategyVariant.PLAIN));
            for (StrategyVariant variant : StrategyVariant.values()) {
                assertTrue(
                        ranks(cases, List.of(kind), variant).stream().anyMatch(ranks -> ranks > 1),
                        kind + " " + variant);
            }
            for (StrategyKind other : EnumSet.range(kind, LAST)) {
                List<Integer> expected =
                        Collections.disjoint(kind.dimensions(), other.dimensions()) ? RANKS_OF_PAIRS : List.of();
                assertEquals(expected, ranks(cases, List.of(kind, other), StrategyVariant.PLAIN), kind + " " + other);
            }
        }
    }

    private static List<Integer> ranks(List<StrategyCase> cases, List<StrategyKind> kinds, StrategyVariant variant) {
        List<StrategyCase> some = cases.stream()
                .filter(one -> one.kinds().equals(kinds) && one.variant() == variant)
                .toList();
        some.forEach(one ->
                assertTrue(kinds.size() == 1 || Collections.min(one.sizes()) > 1, one + " has several ranks of each"));
        return some.stream().map(StrategyCase::ranks).toList();
    }
}
