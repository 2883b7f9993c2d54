package dev.chagres.checkpoint;

import static dev.chagres.checkpoint.RunStateTest.linear;
import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.ParallelMode;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What ranks refuse to save or to load, each with the text that all of them have, and go on. */
@Tag("L0")
@Tag("L2")
class RunStateMisuseTest {
    private static final long SEED = 7;

    @TempDir
    private Path folder;

    private static void withState(int ranks, ZeroStage stage, int features, Consumer<RunState> body) {
        Ranks.local(ranks).each(rank -> {
            try (Strategy strategy =
                            FullySharded.allocate(linear(features), DType.FLOAT32, SEED, stage, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                body.accept(RunState.of(strategy).optimizer(optimizer));
            }
        });
    }

    /** Every rank tells every difference, and keeps what it has. */
    @Test
    void aFileThatDiffersIsLoadedByNoRank() throws IOException {
        DevicesNeeded.assume(3);
        Path file = folder.resolve("a");
        Path before = folder.resolve("before");
        Path after = folder.resolve("after");
        withState(1, ZeroStage.ONE, 32, state -> state.save(file, Map.of()));
        withState(3, ZeroStage.THREE, 16, state -> {
            state.save(before, Map.of());
            SafetensorsException failure = assertThrows(SafetensorsException.class, () -> state.load(file));
            assertEquals(
                    file + ": the file holds other tensors than expected: 0 missing, 0 unexpected, 3 of another type or"
                            + " shape; nothing was loaded\n  different: expected \"layer.weight\" F32[16, 16], got \"layer.weight\""
                            + " F32[16, 32]\n  different: expected \"layer.weight.exp_avg\" F32[16, 16], got"
                            + " \"layer.weight.exp_avg\" F32[16, 32]\n  different: expected \"layer.weight.exp_avg_sq\" F32[16, 16],"
                            + " got \"layer.weight.exp_avg_sq\" F32[16, 32]",
                    failure.getMessage());
            assertEquals(file, failure.file());
            assertTrue(failure.tensor().isEmpty());
            state.save(after, Map.of()); // ranks can go on
        });
        assertEquals(-1, Files.mismatch(before, after));
    }

    @Test
    void aNumberThatCannotBeIsNamedOnEveryRank() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("a");
        Ranks.local(2).each(rank -> {
            try (Strategy strategy =
                            FullySharded.allocate(linear(16), DType.FLOAT32, SEED, ZeroStage.TWO, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                long[] own = {70 + rank.index()};
                State large = new State.Builder()
                        .number("data.sequences", () -> own[0], value -> own[0] = value, 100)
                        .build();
                State small = new State.Builder()
                        .number("data.sequences", () -> own[0], value -> own[0] = value, 10)
                        .build();
                RunState.of(strategy).optimizer(optimizer).with(large).save(file, Map.of());
                SafetensorsException failure = assertThrows(
                        SafetensorsException.class,
                        () -> RunState.of(strategy)
                                .optimizer(optimizer)
                                .with(small)
                                .load(file));
                assertEquals(
                        file + ": tensor \"data.sequences\": expected a number from 0 to 10, got 70",
                        failure.getMessage());
                assertEquals("data.sequences", failure.tensor().orElseThrow());
                assertEquals(70 + rank.index(), own[0]);
                RunState.of(strategy).optimizer(optimizer).with(large).load(file);
                assertEquals(70, own[0], "that of rank 0");
            }
        });
    }

    /** Writes a file again as other programs do, without checksums, with another first element of a tensor. */
    private static void overwrite(Path file, String name, float value) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            List<TensorSource> sources = new ArrayList<>();
            opened.entries().forEach((own, entry) -> {
                MemorySegment bytes = MemorySegment.ofArray(entry.bytes().toArray(ValueLayout.JAVA_BYTE));
                if (own.equals(name)) {
                    bytes.set(ValueLayout.JAVA_FLOAT_UNALIGNED, 0, value);
                }
                sources.add(TensorSource.of(new TensorSpec(own, entry.dtype(), entry.shape()), bytes));
            });
            SafetensorsWriter.write(file, sources, opened.metadata());
        }
    }

    /** Rank 0 reads the file, and each has its error. */
    @Test
    void aDamagedTensorIsNamedOnEveryRank() throws IOException {
        DevicesNeeded.assume(3);
        Path file = folder.resolve("a");
        withState(3, ZeroStage.ONE, 16, state -> state.save(file, Map.of()));
        byte[] bytes = Files.readAllBytes(file);
        bytes[bytes.length - 1] ^= 1;
        Files.write(file, bytes);
        String last;
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            last = List.copyOf(opened.entries().keySet()).getLast();
        }
        withState(3, ZeroStage.THREE, 16, state -> {
            var e = assertThrows(SafetensorsException.class, () -> state.load(file));
            assertEquals(last, e.tensor().orElseThrow());
            assertTrue(e.getMessage().contains(": damaged since it was written: "), e.getMessage());
        });
    }

    /** As one rank refuses it: the mean of squares is no rank's alone. */
    @Test
    void aSquareThatCannotBeIsNamedOnEveryRank() throws IOException {
        DevicesNeeded.assume(3);
        Path file = folder.resolve("a");
        Path after = folder.resolve("after");
        for (float wrong : new float[] {Float.NaN, -1}) {
            withState(3, ZeroStage.ONE, 16, state -> state.save(file, Map.of()));
            overwrite(file, "layer.weight.exp_avg_sq", wrong);
            String text = file + ": tensor \"layer.weight.exp_avg_sq\": expected numbers from 0 on, got " + wrong
                    + " at element 0";
            withState(3, ZeroStage.THREE, 16, state -> {
                assertThrown(SafetensorsException.class, text, () -> state.load(file));
                assertThrown(SafetensorsException.class, text, () -> state.loadUnderOtherRecipe(file));
                state.save(after, Map.of()); // ranks can go on
            });
            Ranks.local(2).each(rank -> {
                ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
                new Linear(16, 16, Bias.PRESENT, ParallelMode.COLUMN, Initializer.normal(0.1f), plan.group("layer"));
                try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED);
                        AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                        Mesh mesh =
                                Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.TENSOR, 2));
                        DataParallel strategy = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE))) {
                    RunState state = RunState.of(strategy).over(mesh).optimizer(optimizer);
                    assertThrown(SafetensorsException.class, text, () -> state.load(file));
                }
            });
        }
    }

    @Test
    void aFileThatCannotBeWrittenIsNamedOnEveryRank() throws IOException {
        DevicesNeeded.assume(2);
        Path file = Files.writeString(folder.resolve("a"), "older");
        Path nowhere = folder.resolve("b").resolve("c");
        withState(2, ZeroStage.THREE, 16, state -> {
            SafetensorsException failure =
                    assertThrows(SafetensorsException.class, () -> state.save(nowhere, Map.of()));
            assertTrue(failure.getMessage().startsWith(nowhere + ": "), failure.getMessage());
            RuntimeException other =
                    assertThrows(RuntimeException.class, () -> state.save(file, Map.of("key", "\ud800")));
            assertTrue(
                    other.getMessage()
                            .contains("metadata: expected texts that UTF-8 can hold, got half a surrogate pair"),
                    other.getMessage());
        });
        assertEquals("older", Files.readString(file));
        assertFalse(Files.exists(nowhere));
    }

    @Test
    void savingAndLoadingAreNotOneCall() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Strategy strategy =
                    FullySharded.allocate(linear(16), DType.FLOAT32, SEED, ZeroStage.THREE, rank.communicator())) {
                RunState weights = RunState.of(strategy);
                Path file = folder.resolve("a");
                assertThrown(
                        IllegalStateException.class,
                        "state: call: expected the same on all ranks, got LOAD on rank 1 and SAVE on rank 0",
                        () -> {
                            if (rank.index() == 0) {
                                weights.save(file, Map.of());
                            } else {
                                weights.load(file);
                            }
                        });
                weights.save(file, Map.of());
                weights.load(file);
            }
        });
    }

    @Test
    void otherTensorsOnOneRankAreRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    try (Strategy strategy = FullySharded.allocate(
                                    linear(16), DType.FLOAT32, SEED, ZeroStage.ONE, rank.communicator());
                            AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                        State.Builder own = new State.Builder();
                        if (rank.index() == 1) {
                            own.number("mine", () -> 0, value -> {}, 0);
                        }
                        RunState.of(strategy)
                                .optimizer(optimizer)
                                .with(own.build())
                                .save(folder.resolve("a"), Map.of());
                    }
                }));
        assertEquals(
                "state: expected the same tensors on all ranks, got others on rank 1 than on rank 0; pass the same"
                        + " optimizer and states, in the same order, on each",
                failure.getCause().getMessage());
        assertArrayEquals(new String[0], folder.toFile().list());
    }

    @Test
    void anotherOptimizerAndAClosedStrategyAreRefused() {
        Ranks.local(1).each(rank -> {
            try (Parameters others = Parameters.allocate(rank.device(), linear(16), DType.FLOAT32, SEED);
                    AdamW foreign = new AdamW(others, AdamW.Config.standard());
                    Parameters parameters = Parameters.allocate(rank.device(), linear(16), DType.FLOAT32, SEED);
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                Strategy strategy = DataParallel.of(parameters, rank.communicator());
                assertThrown(
                        IllegalArgumentException.class,
                        "optimizer: expected that of the same parameters, got that of others: " + foreign,
                        () -> RunState.of(strategy).optimizer(foreign).specs());
                RunState state = RunState.of(strategy).optimizer(optimizer);
                strategy.close();
                assertThrown(
                        IllegalStateException.class,
                        "the " + strategy + " is closed",
                        () -> state.load(folder.resolve("a")));
            }
        });
    }

    @Test
    void gatheringTheStateOfAnotherOptimizerIsRefused() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Parameters others = Parameters.allocate(rank.device(), linear(16), DType.FLOAT32, SEED);
                    AdamW foreign = new AdamW(others, AdamW.Config.standard());
                    FullySharded strategy = FullySharded.allocate(
                            linear(16), DType.FLOAT32, SEED, ZeroStage.ONE, rank.communicator())) {
                assertThrown(
                        IllegalArgumentException.class,
                        "optimizer: expected that of this strategy's parameters, got that of others: " + foreign,
                        () -> strategy.gatherState(foreign, (name, tensor) -> {}));
            }
        });
    }

    @Test
    void layersThatRanksSplitNeedTheirMesh() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator());
            ModelPlan plan = new ModelPlan(ranks);
            new LayerNormMlp(MlpConfig.gelu(16), plan.group("layer"));
            ModelPlan foreignPlan = new ModelPlan();
            new LayerNormMlp(MlpConfig.gelu(16), foreignPlan.group("layer"));
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED);
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                    Mesh mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.TENSOR, 2));
                    Mesh other = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, 2));
                    Parameters others = Parameters.allocate(rank.device(), foreignPlan, DType.FLOAT32, SEED);
                    AdamW foreign = new AdamW(others, AdamW.Config.standard());
                    DataParallel strategy = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE))) {
                assertThrown(
                        IllegalStateException.class,
                        "state: expected whole layers, got those of " + ranks
                                + "; call RunState.of(strategy).over(mesh)",
                        () -> RunState.of(strategy).optimizer(optimizer).specs());
                assertThrown(
                        IllegalArgumentException.class,
                        "mesh: expected that of " + ranks + ", got " + other,
                        () -> RunState.of(strategy)
                                .over(other)
                                .optimizer(optimizer)
                                .specs());
                assertThrown(
                        IllegalArgumentException.class,
                        "optimizer: expected that of the same parameters, got that of others: " + foreign,
                        () -> RunState.of(strategy)
                                .over(mesh)
                                .optimizer(foreign)
                                .specs());
            }
            try (Mesh mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.TENSOR, 2));
                    FullySharded strategy = FullySharded.allocate(
                            plan, DType.FLOAT32, SEED, ZeroStage.ONE, mesh.along(MeshDimension.SHARD));
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                assertThrown(
                        IllegalArgumentException.class,
                        "mesh: expected the one that FullySharded.allocate was given (one rank), got " + mesh,
                        () -> RunState.of(strategy)
                                .over(mesh)
                                .optimizer(optimizer)
                                .specs());
            }
        });
    }
}
