package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.sharding.StrategyRun.Clipping;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Losses and norms of which every bit is the same, of a model with {@code AttentionConfig.deterministic()}. Promised are:
 *
 * <ul>
 *   <li>of every strategy, those of another run on as many ranks;
 *   <li>of every strategy on the reference, those of ranks that are processes in place of threads;
 *   <li>on the reference, losses and norms of {@code ddp}, and losses of {@code zero1}, {@code zero2}, {@code zero3}, {@code pp} whose
 *       norms clip nothing, those of one rank that accumulates as many micro-batches: there both add gradients up in the order of
 *       micro-batches, when each data-parallel rank has one. {@code pp} with parameters that two stages have is left out: their
 *       gradients are added up stage by stage;
 *   <li>of {@code zero1}, {@code zero2} and {@code zero3}, those of each other, clipped or not, on the reference.
 * </ul>
 *
 * <p>Not promised, for sums have another order: norms of sharded tensors, since each rank's squares are added up first, and so losses of
 * clipped gradients; {@code hsdp}, which adds up in a copy first, then over copies; {@code tp} and {@code cp}, of which each rank has a
 * part of the terms inside a layer. {@link EveryStrategyTest} has how close they are.
 */
@Tag("L0")
@Tag("L2")
class StrategyBitsTest {
    private static final int RANKS = 4;
    /** Of each strategy the run that others are compared with. */
    private static final Map<StrategyKind, List<StrategyRun>> FIRST = new EnumMap<>(StrategyKind.class);

    @AfterAll
    static void forget() {
        FIRST.clear();
    }

    static StrategyCase plain(StrategyKind kind) {
        return StrategyCase.of(kind, RANKS, StrategyVariant.PLAIN);
    }

    private static List<StrategyRun> ofThreads(StrategyKind kind) {
        DevicesNeeded.assume(RANKS);
        return Ranks.local(RANKS).run(rank -> StrategyRun.ofRank(rank, plain(kind), Clipping.NONE));
    }

    private static List<String> first(StrategyKind kind) {
        return bits(FIRST.computeIfAbsent(kind, StrategyBitsTest::ofThreads));
    }

    private static List<String> bits(List<StrategyRun> runs) {
        return runs.stream().map(StrategyRun::bits).toList();
    }

    @ParameterizedTest
    @EnumSource
    void anotherRunHasTheSameBits(StrategyKind kind) {
        assertEquals(first(kind), bits(ofThreads(kind)));
    }

    /** Each process trains by all strategies, one after another. */
    @Test
    @Timeout(300)
    void processesHaveTheBitsOfThreads(@TempDir Path folder) throws Exception {
        assumeReference();
        DevicesNeeded.assume(RANKS);
        try (RankJvms ranks = new RankJvms(folder, RANKS, StrategyProgram.class)) {
            for (int rank = 0; rank < RANKS; rank++) {
                ranks.process(rank).waitFor();
                ranks.awaitEnd(rank, 0);
            }
        }
        for (int rank = 0; rank < RANKS; rank++) {
            List<String> expected = new ArrayList<>();
            for (StrategyKind kind : StrategyKind.values()) {
                StrategyRun run =
                        FIRST.computeIfAbsent(kind, StrategyBitsTest::ofThreads).get(rank);
                expected.add(kind + " " + run.bits(StrategyProgram.STEPS));
            }
            assertEquals(expected, Files.readAllLines(folder.resolve("out" + rank)), "rank " + rank);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"DDP", "ZERO1", "ZERO2", "ZERO3", "PP_1F1B", "PP_INTERLEAVED"})
    void sumsInTheOrderOfMicroBatchesHaveTheBitsOfOneRank(StrategyKind kind) {
        assumeReference();
        StrategyCase one = plain(kind);
        StrategyRun expected = StrategyRun.ofOne(one, Clipping.NONE);
        StrategyRun actual = StrategyRun.joined(one, FIRST.computeIfAbsent(kind, StrategyBitsTest::ofThreads));
        assertArrayEquals(expected.losses(), actual.losses());
        if (kind == StrategyKind.DDP) {
            assertArrayEquals(expected.norms(), actual.norms());
        }
    }

    /** Of a model whose parameters three ranks do not divide, with clipped gradients. */
    @Test
    void stagesOfZeroHaveTheSameBits() {
        assumeReference();
        DevicesNeeded.assume(3);
        StrategyCase[] stages = Stream.of(StrategyKind.ZERO1, StrategyKind.ZERO2, StrategyKind.ZERO3)
                .map(kind -> StrategyCase.of(kind, 3, StrategyVariant.UNEVEN))
                .toArray(StrategyCase[]::new);
        String expected = StrategyRun.ofRanks(stages[0], Clipping.TO_ONE).bits();
        assertEquals(expected, StrategyRun.ofRanks(stages[1], Clipping.TO_ONE).bits());
        assertEquals(expected, StrategyRun.ofRanks(stages[2], Clipping.TO_ONE).bits());
    }

    private static void assumeReference() {
        assumeTrue(
                Provider.current() == Provider.REFERENCE,
                "skipped: NCCL and cuBLAS add up in an order that depends on the number of ranks and of rows");
    }
}
