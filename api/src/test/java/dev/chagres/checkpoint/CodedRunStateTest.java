package dev.chagres.checkpoint;

import static dev.chagres.checkpoint.RunStateTest.HALF;
import static dev.chagres.checkpoint.RunStateTest.assertSameBytes;
import static dev.chagres.checkpoint.RunStateTest.assertSameCheckpoint;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.layer.ParallelMode;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.ops.StepState;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Optimizer;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.CodedState;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** States of eight bits, whose blocks belong to ranks: any ranks load what others have saved. */
@Tag("L0")
@Tag("L2")
class CodedRunStateTest {
    private static final long SEED = 7;

    @TempDir
    private Path folder;

    /** Each part of layers is whole blocks, but for a bias of {@code odd} columns, which no ranks split. */
    private static ModelPlan blocks(TensorParallel ranks, int inner, int odd) {
        ModelPlan plan = new ModelPlan(ranks);
        plan.alignParameters(256);
        new Linear(odd, inner, Bias.PRESENT, ParallelMode.COLUMN, Initializer.normal(0.1f), plan.group("wide"));
        new Linear(inner, odd, Bias.PRESENT, ParallelMode.ROW, Initializer.normal(0.1f), plan.group("narrow"));
        return plan;
    }

    /** The gradients of a step are the weights, so that it has the same bits whatever part a rank has. */
    private static void step(Parameters parameters, Optimizer optimizer) {
        parameters.completeGradients(); // those of no backward are 0
        Tensor weights = Checks.given("weights", parameters.access().vector(DType.FLOAT32));
        parameters.gradients().copyFrom(parameters.scope().stream(), weights);
        optimizer.step(0.1f);
    }

    private static Optimizer codes(Parameters parameters, boolean lion) {
        return lion
                ? new Lion(parameters, Lion.Config.standard().withMomentDType(DType.BYTE))
                : new AdamW(parameters, AdamW.Config.standard().withMomentDType(DType.BYTE));
    }

    /** Ranks that split layers, and perhaps shard the parts: they load what one rank has saved, step, and save what it does. */
    @ParameterizedTest
    @CsvSource({"1, 2, false", "1, 2, true", "2, 2, false", "3, 2, true"})
    void blocksOfEightBitsBelongToOneRank(int shards, int tensor, boolean lion) throws IOException {
        DevicesNeeded.assume(shards * tensor);
        Path one = folder.resolve("one");
        Path next = folder.resolve("next");
        Path several = folder.resolve("several");
        Path later = folder.resolve("later");
        for (Path file : List.of(one, several)) {
            Files.createDirectory(Span.steps(file));
        }
        Ranks.local(1).each(rank -> {
            TensorParallel alone = TensorParallel.of(rank.communicator());
            try (Parameters parameters =
                            Parameters.allocate(rank.device(), blocks(alone, 512, 33), DType.FLOAT32, SEED);
                    Optimizer optimizer = codes(parameters, lion)) {
                RunState state = RunState.of(parameters).optimizer(optimizer);
                step(parameters, optimizer);
                step(parameters, optimizer);
                state.save(one, Map.of());
                state.save(CheckpointFolder.of(Span.steps(one)), HALF, Map.of());
                step(parameters, optimizer);
                state.save(next, Map.of());
            }
        });
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, shards).with(MeshDimension.TENSOR, tensor);
        Ranks.local(shape.ranks()).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    Strategy strategy = FullySharded.allocate(
                            blocks(TensorParallel.of(mesh.along(MeshDimension.TENSOR)), 512, 33),
                            DType.FLOAT32,
                            SEED + 1,
                            FullyShardedConfig.of(ZeroStage.THREE),
                            mesh);
                    Optimizer optimizer = codes(strategy.parameters(), lion)) {
                RunState state = RunState.of(strategy).over(mesh).optimizer(optimizer);
                state.load(one);
                state.save(several, Map.of());
                state.load(Span.steps(one));
                state.save(CheckpointFolder.of(Span.steps(several)), HALF, Map.of());
                strategy.sumGradients(); // no step comes without
                step(strategy.parameters(), optimizer);
                state.save(later, Map.of());
            }
        });
        assertSameBytes(one, several);
        assertSameCheckpoint(Span.steps(one), Span.steps(several));
        assertSameBytes(next, later);
        assertNotEquals(-1, Files.mismatch(one, next));
    }

    /** Of ranks that split layers, and perhaps shard the parts: loads, unless that is null, steps and saves. */
    private record Coded(int shards, int tensor, int inner, boolean lion) {
        Coded by(int newShards, int newTensor) {
            return new Coded(newShards, newTensor, inner, lion);
        }

        void run(@Nullable Path loaded, int steps, Path... saved) {
            MeshShape shape =
                    MeshShape.ofOne().with(MeshDimension.SHARD, shards).with(MeshDimension.TENSOR, tensor);
            Ranks.local(shape.ranks()).each(rank -> {
                try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                        Strategy strategy = FullySharded.allocate(
                                blocks(TensorParallel.of(mesh.along(MeshDimension.TENSOR)), inner, 33),
                                DType.FLOAT32,
                                loaded == null ? SEED : SEED + 1,
                                FullyShardedConfig.of(ZeroStage.THREE),
                                mesh);
                        Optimizer optimizer = codes(strategy.parameters(), lion)) {
                    RunState state = RunState.of(strategy).over(mesh).optimizer(optimizer);
                    if (loaded != null) {
                        state.load(loaded);
                    }
                    for (int i = 0; i < steps; i++) {
                        strategy.sumGradients(); // no step comes without
                        step(strategy.parameters(), optimizer);
                    }
                    for (Path file : saved) {
                        if (Files.isDirectory(file)) {
                            state.save(CheckpointFolder.of(file), HALF, Map.of());
                        } else {
                            state.save(file, Map.of());
                        }
                    }
                }
            });
        }
    }

    private Path steps(String name) throws IOException {
        return Files.createDirectory(folder.resolve(name));
    }

    /** Where a block of the whole belongs to several ranks, the same parts have the same bits, and others the nearest numbers. */
    @ParameterizedTest
    @CsvSource({"320, false", "36, true"})
    void blocksOfEightBitsGoToRanksWithOtherParts(int inner, boolean lion) throws IOException {
        DevicesNeeded.assume(4);
        Coded two = new Coded(1, 2, inner, lion);
        Path half = folder.resolve("half");
        Path steps = steps("steps");
        two.run(null, 2, half, steps);
        Path end = folder.resolve("end");
        two.run(null, 3, end);
        for (int shards = 1; shards <= 2; shards++) { // other shards of the same parts, too
            Path from = shards == 1 ? half : steps;
            Coded same = two.by(shards, 2);
            Path again = folder.resolve("again" + shards);
            Path stepsAgain = steps("steps again" + shards);
            same.run(from, 0, again, stepsAgain);
            assertSameBytes(half, again);
            assertSameCheckpoint(steps, stepsAgain);
            Path later = folder.resolve("later" + shards);
            same.run(from, 1, later);
            assertSameBytes(end, later);
        }
        Path one = folder.resolve("one");
        Path ofOne = steps("steps of one");
        two.by(1, 1).run(half, 0, one, ofOne);
        assertNearestNumbers(half, one);
        Path four = folder.resolve("four");
        two.by(1, 4).run(steps, 0, four);
        assertNearestNumbers(half, four);
        Path fourAgain = folder.resolve("four again");
        two.by(1, 4).run(four, 0, fourAgain);
        assertSameBytes(four, fourAgain);
        for (Path from : List.of(one, ofOne)) {
            Path back = Files.createTempFile(folder, "back", "");
            two.run(from, 0, back);
            assertNearestNumbers(one, back);
        }
        Path fromFolder = folder.resolve("from the folder");
        two.by(1, 1).run(steps, 0, fromFolder);
        assertSameBytes(one, fromFolder);
    }

    /** Of neighbours among those of 256 elements at most a half of the code's widest gap is lost; all else has the same bits. */
    private static void assertNearestNumbers(Path expected, Path actual) {
        try (SafetensorsFile before = SafetensorsFile.open(expected);
                SafetensorsFile after = SafetensorsFile.open(actual)) {
            assertEquals(before.entries().keySet(), after.entries().keySet());
            double moved = 0;
            for (String name : before.entries().keySet()) {
                if (before.entries().containsKey(name + "_absmax")) {
                    double[] numbers = numbers(before, name);
                    double[] others = numbers(after, name);
                    float largest = 0;
                    for (double number : numbers) {
                        largest = Math.max(largest, (float) Math.abs(number));
                    }
                    for (int i = 0; i < numbers.length; i++) {
                        assertEquals(numbers[i], others[i], 0.9 / 64 / 2 * largest * (1 + 1e-5), name + " " + i);
                        moved = Math.max(moved, Math.abs(numbers[i] - others[i]));
                    }
                } else if (!name.endsWith("_absmax")) {
                    assertEquals(
                            -1,
                            before.entry(name)
                                    .bytes()
                                    .mismatch(after.entry(name).bytes()),
                            name);
                }
            }
            assertTrue(moved > 0, "expected blocks that ranks share");
        }
    }

    /** The numbers of codes, by the formula of their kind. */
    private static double[] numbers(SafetensorsFile file, String name) {
        boolean isSquare = name.endsWith("_sq");
        double[] rising = IntStream.range(0, 7)
                .boxed()
                .flatMap(decade -> {
                    int count = (isSquare ? 2 : 1) << decade;
                    return IntStream.range(0, count)
                            .mapToObj(i -> Math.pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / count));
                })
                .flatMap(number -> isSquare ? Stream.of(number) : Stream.of(number, -number))
                .mapToDouble(Double::doubleValue)
                .toArray();
        double[] codes = DoubleStream.concat(DoubleStream.of(0, 1), DoubleStream.of(rising))
                .sorted()
                .toArray();
        MemorySegment bytes = file.entry(name).bytes();
        MemorySegment scales = file.entry(name + "_absmax").bytes();
        long count = scales.byteSize() / Float.BYTES;
        long unit = count == Math.ceilDiv(bytes.byteSize(), 256L) ? 256 : bytes.byteSize() / count;
        double[] numbers = new double[(int) bytes.byteSize()];
        for (int i = 0; i < numbers.length; i++) {
            int code = bytes.get(ValueLayout.JAVA_BYTE, i) + (isSquare ? 0 : 127) & 0xff;
            numbers[i] = codes[code] * scales.get(ValueLayout.JAVA_FLOAT_UNALIGNED, i / unit * Float.BYTES);
        }
        return numbers;
    }

    /** Any bytes of scales that one rank makes of those of two. */
    private static void assertPartsAreThoseOfTheWhole(Path file, String name) {
        try (SafetensorsFile two = SafetensorsFile.open(file)) {
            Shape shape = two.entry(name).shape();
            CodedState state =
                    new CodedState(name, name + "_absmax", StepState.Codes.SIGNED, ParameterSplit.of(null, shape));
            try (SafetensorsFile one = SafetensorsFile.open(file, List.of(state))) {
                SafetensorsEntry scales = one.entry(name + "_absmax");
                MemorySegment all = scales.bytes();
                assertEquals(state.units() * Float.BYTES, all.byteSize());
                for (long begin = 0; begin < 9; begin++) {
                    for (long end = begin; end < 18; end++) {
                        MemorySegment part = Arena.ofAuto().allocate(end - begin);
                        scales.copyTo(begin, part);
                        assertEquals(-1, part.mismatch(all.asSlice(begin, end - begin)), begin + " to " + end);
                    }
                }
            }
        }
    }

    /** Of scales without codes, and of codes without scales, what is missing is named. */
    @Test
    void missingPartsAreNamed() {
        DevicesNeeded.assume(2);
        Coded two = new Coded(1, 2, 320, true);
        Path half = folder.resolve("half");
        two.run(null, 0, half);
        Path without = folder.resolve("without");
        for (String name : List.of("narrow.weight.exp_avg", "narrow.weight.exp_avg_absmax")) {
            try (SafetensorsFile file = SafetensorsFile.open(half)) {
                List<TensorSource> sources = file.entries().values().stream()
                        .filter(entry -> !entry.name().equals(name))
                        .map(entry -> TensorSource.of(
                                new TensorSpec(entry.name(), entry.dtype(), entry.shape()), entry.bytes()))
                        .toList();
                assertEquals(file.entries().size() - 1, sources.size());
                SafetensorsWriter.write(without, sources, Map.of());
            }
            for (Coded ranks : List.of(two, two.by(1, 1))) {
                String text = assertThrows(RuntimeException.class, () -> ranks.run(without, 0))
                        .toString();
                String expected = name.endsWith("absmax")
                        ? "missing: \"" + name + "\""
                        : without + ": tensor \"" + name
                                + "\": expected 10560 codes of eight bits beside their scales, \"" + name
                                + "_absmax\", got none";
                assertTrue(text.contains(expected), text);
            }
        }
    }

    /** Of a file of two ranks that is damaged in a way that its checksums do not show, nothing is loaded. */
    @Test
    void wrongScalesAreRefused() {
        DevicesNeeded.assume(2);
        Coded two = new Coded(1, 2, 320, false);
        Path half = folder.resolve("half");
        two.run(null, 1, half);
        String name = "narrow.weight.exp_avg_absmax";
        assertPartsAreThoseOfTheWhole(half, "narrow.weight.exp_avg");
        Path wrong = folder.resolve("wrong");
        try (SafetensorsFile file = SafetensorsFile.open(half)) {
            for (float[] scales : new float[][] {
                {330, -1}, {330, Float.NaN}, {330, Float.POSITIVE_INFINITY}, {329, 1}, {0, 1}, {661, 1}
            }) {
                float[] all = new float[(int) scales[0]];
                Arrays.fill(all, 1);
                if (all.length > 3) {
                    all[3] = scales[1];
                }
                List<TensorSource> sources = file.entries().values().stream()
                        .map(entry -> entry.name().equals(name)
                                ? TensorSource.of(
                                        new TensorSpec(name, DType.FLOAT32, Shape.of(all.length)),
                                        MemorySegment.ofArray(all))
                                : TensorSource.of(
                                        new TensorSpec(entry.name(), entry.dtype(), entry.shape()), entry.bytes()))
                        .toList();
                SafetensorsWriter.write(wrong, sources, Map.of());
                for (Coded ranks : List.of(two, two.by(1, 1))) {
                    String text = assertThrows(RuntimeException.class, () -> ranks.run(wrong, 0))
                            .toString();
                    boolean fits = all.length == 330;
                    assertTrue(text.contains(name), text);
                    assertTrue(
                            text.contains(
                                    fits
                                            ? "expected finite numbers from 0 on, got " + scales[1]
                                            : "[" + all.length + "]"),
                            text);
                }
            }
        }
    }
}
