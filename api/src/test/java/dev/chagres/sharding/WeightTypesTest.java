package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Shape;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsEntry;
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
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Models begin with weights of another floating-point type: a wider one has the same numbers, a narrower one the nearest. */
@Tag("L0")
@Tag("L2")
class WeightTypesTest {
    private static final long TRAINED_SEED = 11;
    private static final long OTHER_SEED = 7;
    private static final int HIDDEN = 48;

    @TempDir
    private Path folder;

    private static void mlp(ModelPlan plan) {
        new LayerNormMlp(MlpConfig.gelu(HIDDEN), plan.group("layer"));
    }

    /** Writes trained weights of {@code dtype}, with all that a run keeps. */
    private Path trained(DType dtype) {
        Path file = folder.resolve("trained");
        ModelPlan plan = new ModelPlan();
        mlp(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, dtype, TRAINED_SEED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            Safetensors.save(file, State.of(parameters.state(), optimizer.state()), device.stream(), Map.of());
        }
        return file;
    }

    private static int size(DType dtype) {
        return dtype.byteSize();
    }

    private static float number(DType dtype, MemorySegment bytes, long index) {
        if (dtype == DType.FLOAT32) {
            return bytes.getAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, index);
        }
        short bits = bytes.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, index);
        return dtype == DType.BFLOAT16 ? Float.intBitsToFloat(bits << 16) : Float.float16ToFloat(bits);
    }

    private static int bits(DType dtype, float value) {
        return switch (dtype) {
            case BFLOAT16 -> DType.toBfloat16(value);
            case FLOAT16 -> Float.floatToFloat16(value);
            default -> Float.floatToRawIntBits(value);
        };
    }

    /** Checks that {@code saved} has every weight of the model, each the nearest number to that in {@code file}. */
    private static void assertNearest(Path file, Path saved) {
        try (SafetensorsFile expected = SafetensorsFile.open(file);
                SafetensorsFile actual = SafetensorsFile.open(saved)) {
            assertTrue(!actual.entries().isEmpty());
            for (SafetensorsEntry entry : actual.entries().values()) {
                SafetensorsEntry trained = expected.entry(entry.name());
                MemorySegment from = trained.bytes();
                MemorySegment to = entry.bytes();
                DType dtype = entry.dtype();
                for (long i = 0; i < entry.byteSize() / size(dtype); i++) {
                    float value = number(trained.dtype(), from, i);
                    int bits = dtype == DType.FLOAT32
                            ? to.getAtIndex(ValueLayout.JAVA_INT_UNALIGNED, i)
                            : to.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i);
                    if (bits != bits(dtype, value)) {
                        assertEquals(bits(dtype, value), bits, entry + " element " + i + ": " + value);
                    }
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, BFLOAT16, MODEL_TYPE",
        "FLOAT32, FLOAT16, MODEL_TYPE",
        "BFLOAT16, FLOAT32, MODEL_TYPE",
        "BFLOAT16, FLOAT16, MODEL_TYPE",
        "FLOAT16, FLOAT32, MODEL_TYPE",
        "FLOAT16, BFLOAT16, MODEL_TYPE",
        "FLOAT32, BFLOAT16, QUANTIZED",
        "BFLOAT16, BFLOAT16, QUANTIZED",
        "FLOAT16, FLOAT16, QUANTIZED"
    })
    void oneRank(DType from, DType to, WeightStorage storage) {
        Path file = trained(from);
        Path saved = folder.resolve("saved");
        ModelPlan plan = new ModelPlan();
        mlp(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, to, OTHER_SEED, storage)) {
            Safetensors.load(file, parameters.weightState(), device.stream());
            Safetensors.save(saved, parameters.weightState(), device.stream(), Map.of());
        }
        assertNearest(file, saved);
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, BFLOAT16, ONE",
        "FLOAT32, BFLOAT16, THREE",
        "BFLOAT16, FLOAT32, THREE",
        "FLOAT16, BFLOAT16, THREE",
        "BFLOAT16, FLOAT16, TWO"
    })
    void shardedRanks(DType from, DType to, ZeroStage stage) {
        DevicesNeeded.assume(2);
        Path file = trained(from);
        Path saved = folder.resolve("saved");
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            mlp(plan);
            try (FullySharded strategy = FullySharded.allocate(plan, to, OTHER_SEED, stage, rank.communicator())) {
                RunState.of(strategy).load(file);
                RunState.of(strategy).save(saved, Map.of());
            }
        });
        assertNearest(file, saved);
    }

    /** Weights travel in several pieces, of which the file's are smaller or larger than the model's. */
    @ParameterizedTest
    @CsvSource({"FLOAT32, BFLOAT16", "BFLOAT16, FLOAT32"})
    void manyPieces(DType from, DType to) {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("trained");
        Path saved = folder.resolve("saved");
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, wide(), from, TRAINED_SEED)) {
            Safetensors.save(file, parameters.weightState(), device.stream(), Map.of());
        }
        Ranks.local(2).each(rank -> {
            try (FullySharded strategy =
                    FullySharded.allocate(wide(), to, OTHER_SEED, ZeroStage.THREE, rank.communicator())) {
                RunState.of(strategy).load(file);
                RunState.of(strategy).save(saved, Map.of());
            }
        });
        assertNearest(file, saved);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, wide(), to, OTHER_SEED)) {
            Safetensors.load(file, parameters.weightState(), device.stream());
            Safetensors.save(saved, parameters.weightState(), device.stream(), Map.of());
        }
        assertNearest(file, saved);
    }

    /** More than 16 MB in 16 bits. */
    private static ModelPlan wide() {
        ModelPlan plan = new ModelPlan();
        new Linear(4096, 2064, Bias.ABSENT, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    @ParameterizedTest
    @CsvSource({"FLOAT32, BFLOAT16", "BFLOAT16, FLOAT32", "FLOAT32, FLOAT16"})
    void ranksThatSplitLayers(DType from, DType to) {
        DevicesNeeded.assume(2);
        Path file = trained(from);
        Path saved = folder.resolve("saved");
        Ranks.local(2).each(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.TENSOR, 2);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                ModelPlan plan = new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR)));
                mlp(plan);
                try (Parameters parameters = Parameters.allocate(rank.device(), plan, to, OTHER_SEED);
                        Strategy copies = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE))) {
                    RunState.of(copies).over(mesh).load(file);
                    RunState.of(copies).over(mesh).save(saved, Map.of());
                }
            }
        });
        assertNearest(file, saved);
    }

    /** Returns {@code file} again, with one weight as {@code spec}. */
    private Path with(Path file, TensorSpec spec) {
        Path changed = folder.resolve("changed");
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            List<TensorSource> sources = new ArrayList<>();
            for (SafetensorsEntry entry : opened.entries().values()) {
                boolean other = entry.name().equals(spec.name());
                sources.add(TensorSource.of(
                        other ? spec : new TensorSpec(entry.name(), entry.dtype(), entry.shape()),
                        other ? MemorySegment.ofArray(new byte[(int) spec.byteSize()]) : entry.bytes()));
            }
            SafetensorsWriter.write(changed, sources, Map.of());
        }
        return changed;
    }

    /** Integers, other shapes, and a run that goes on: nothing is loaded. */
    @Test
    void allElseIsRefused() throws IOException {
        Path file = trained(DType.FLOAT32);
        Path before = folder.resolve("before");
        Path after = folder.resolve("after");
        ModelPlan plan = new ModelPlan();
        mlp(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, OTHER_SEED)) {
            Safetensors.save(before, parameters.weightState(), device.stream(), Map.of());
            String name = parameters.all().getLast().name();
            Shape shape = parameters.all().getLast().shape();
            Path integers = with(file, new TensorSpec(name, DType.INT32, shape));
            assertThrown(
                    SafetensorsException.class,
                    integers
                            + ": the file holds other tensors than expected: 0 missing, 0 unexpected, 1 of another type or"
                            + " shape; nothing was loaded\n  different: expected \"" + name + "\" BF16" + shape
                            + ", got \""
                            + name + "\" I32" + shape,
                    () -> Safetensors.load(integers, parameters.weightState(), device.stream()));
            Path other = with(file, new TensorSpec(name, DType.FLOAT32, Shape.of(3, 5)));
            assertThrown(
                    SafetensorsException.class,
                    other
                            + ": the file holds other tensors than expected: 0 missing, 0 unexpected, 1 of another type or"
                            + " shape; nothing was loaded\n  different: expected \"" + name + "\" BF16" + shape
                            + ", got \""
                            + name + "\" F32[3, 5]",
                    () -> Safetensors.load(other, parameters.weightState(), device.stream()));
            try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                State run = State.of(parameters.state(), optimizer.state());
                SafetensorsException refused =
                        assertThrows(SafetensorsException.class, () -> Safetensors.load(file, run, device.stream()));
                String text = String.valueOf(refused.getMessage());
                assertTrue(text.contains("different: expected \"" + name + "\" BF16" + shape + ", got"), text);
            }
            Safetensors.save(after, parameters.weightState(), device.stream(), Map.of());
        }
        assertEquals(-1, Files.mismatch(before, after));
    }

    /** The first of many differences are told, and how to go without the scales that a file of weights has not. */
    @Test
    void whatIsMissingIsToldShortly() {
        Path file = folder.resolve("weights");
        ModelPlan plan = layers(24);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, TRAINED_SEED);
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard())) {
            Safetensors.save(file, parameters.weightState(), device.stream(), Map.of());
            State state = State.of(parameters.weightState(), quantizers.state());
            int missing = quantizers.state().tensors().size();
            SafetensorsException refused =
                    assertThrows(SafetensorsException.class, () -> Safetensors.load(file, state, device.stream()));
            List<String> lines = String.valueOf(refused.getMessage()).lines().toList();
            assertEquals(
                    file + ": the file holds other tensors than expected: " + missing
                            + " missing, 0 unexpected, 0 of another type or shape; nothing was loaded; the file has"
                            + " all weights, but lacks other requested state: load only weightState(); if scales are"
                            + " missing, get them by Pass.calibrate, or load them from the file of a run",
                    lines.getFirst());
            assertEquals(22, lines.size());
            assertEquals("  missing: " + (missing - 20) + " more", lines.getLast());
        }
    }

    private static ModelPlan layers(int count) {
        ModelPlan plan = new ModelPlan();
        for (int i = 0; i < count; i++) {
            new Linear(16, 16, Bias.ABSENT, Initializer.normal(0.1f), plan.group("layer" + i));
        }
        return plan;
    }
}
