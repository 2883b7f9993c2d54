package dev.chagres.cudnn;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;

/** What builders, plans and packs refuse, and with which words. */
@Tag("L0")
@Tag("L1")
class GraphMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final GraphBuilder builder = OperationGraph.builder("g");
    private final GraphTensor x = builder.tensor("x", DType.FLOAT32, 2, 3, 4);
    private final GraphTensor other = OperationGraph.builder("other").tensor("z", DType.FLOAT32, 2, 3, 4);

    private static void refused(String text, Executable call) {
        assertThrown(IllegalArgumentException.class, text, call);
    }

    @Test
    void tensors() {
        refused(
                "tensor \"x\", name: expected one that no other tensor or operation of the graph has, got \"x\"",
                () -> builder.tensor("x", DType.FLOAT32, 1));
        refused(
                "tensor \"y\", dims: expected 1 to 8 sizes of at least 1, and at most 1099511627776 elements, got [2, 0]",
                () -> builder.tensor("y", DType.FLOAT32, 2, 0));
        refused(
                "tensor \"y\", dims: expected 1 to 8 sizes of at least 1, and at most 1099511627776 elements, got"
                        + " [4294967296, 4294967296]",
                () -> builder.tensor("y", DType.FLOAT32, 1L << 32, 1L << 32));
        refused(
                "tensor \"y\", strides: expected 2 of at least 1, over at most 1099511627776 elements, got [1]",
                () -> builder.tensor("y", DType.FLOAT32, new long[] {2, 3}, new long[] {1}));
        refused("dtype: expected one that cuDNN's graphs have, got INT16", () -> builder.tensor("y", DType.INT16, 2));
        refused("scalar \"s\", rank: expected 1 to 8, got 9", () -> builder.scalar("s", 9, 1));
        refused("scalar \"s\", value: expected a number, got NaN", () -> builder.scalar("s", 3, Float.NaN));
        assertThrown(
                NullPointerException.class,
                "dtype: expected a value, got null",
                () -> builder.tensor("y", (DType) null, 2));
    }

    @Test
    void products() {
        GraphTensor b = builder.tensor("b", DType.FLOAT32, 2, 5, 6);
        refused(
                "matmul \"c\", b: expected […, K, N] with the batch and K of x FLOAT[2, 3, 4], got b FLOAT[2, 5, 6]",
                () -> builder.matmul("c", x, b));
        refused(
                "matmul \"c\", a: expected at least 3 dimensions, […, M, K], got m FLOAT[3, 4]",
                () -> builder.matmul("c", builder.tensor("m", DType.FLOAT32, 3, 4), x));
        refused(
                "matmul \"c\", b: expected a tensor of this graph, got z FLOAT[2, 3, 4] of another",
                () -> builder.matmul("c", x, other));
        assertThrown(NullPointerException.class, "a: expected a value, got null", () -> builder.matmul("c", null, x));
    }

    @Test
    void pointwise() {
        refused(
                "ADD \"y\", inputs: expected 2 tensors, got [x FLOAT[2, 3, 4]]",
                () -> builder.pointwise("y", PointwiseMode.ADD, x));
        GraphTensor row = builder.tensor("row", DType.FLOAT32, 1, 1, 5);
        refused(
                "ADD \"y\", b: expected sizes of [2, 3, 5] or 1, got row FLOAT[1, 1, 5]",
                () -> builder.pointwise("y", PointwiseMode.ADD, x, row));
        refused(
                "GEN_INDEX \"y\", axis: expected one of 3 dimensions, from 0, got 3",
                () -> builder.pointwise("y", PointwiseMode.GEN_INDEX, PointwiseConfig.DEFAULT.withAxis(3), x));
        refused(
                "RELU_BWD \"y\", alpha1, alpha2: expected 1 for a gradient, got 2.0 and 1.0",
                () -> builder.pointwise("y", PointwiseMode.RELU_BWD, PointwiseConfig.DEFAULT.withFactors(2, 1), x, x));
        refused(
                "reduction ADD \"y\", axes: expected some of the dimensions of x FLOAT[2, 3, 4], got [3]",
                () -> builder.reduction("y", ReductionMode.ADD, x, 3));
        refused(
                "reduction ADD \"y\", axes: expected some of the dimensions of x FLOAT[2, 3, 4], got []",
                () -> builder.reduction("y", ReductionMode.ADD, x));
    }

    @Test
    void layouts() {
        refused("reshape \"y\", dims: expected 24 elements, got [5, 5]", () -> builder.reshape("y", x, 5, 5));
        refused(
                "transpose \"y\", permutation: expected each dimension of x FLOAT[2, 3, 4] once, got [0, 1, 1]",
                () -> builder.transpose("y", x, 0, 1, 1));
        GraphTensor turned = builder.transpose("turned", x, 0, 2, 1);
        refused(
                "reshape \"y\", x: expected elements without gaps, the last dimension fastest, got turned FLOAT[2, 4, 3]"
                        + " strides [12, 1, 4]",
                () -> builder.reshape("y", turned, 24));
        refused(
                "concatenate \"y\", inputs: expected x FLOAT[2, 3, 4] but along axis 1, got turned FLOAT[2, 4, 3] strides"
                        + " [12, 1, 4]",
                () -> builder.concatenate("y", 1, x, turned));
        refused(
                "concatenate \"y\", axis: expected a dimension of x FLOAT[2, 3, 4], from 0, got 3",
                () -> builder.concatenate("y", 3, x));
        refused("concatenate \"y\", inputs: expected tensors, got none", () -> builder.concatenate("y", 0));
    }

    @Test
    void convolutionsAndWindows() {
        GraphTensor image = builder.tensor("image", DType.FLOAT32, 1, 6, 4, 4);
        GraphTensor wide = builder.tensor("wide", DType.FLOAT32, 8, 6, 5, 5);
        ConvolutionConfig plain = ConvolutionConfig.of(2);
        refused(
                "convolution \"y\", w: expected [K, C / groups, …] that fits into [1, 6, 4, 4] with its padding, got"
                        + " [8, 6, 5, 5]",
                () -> builder.convolution("y", image, wide, plain));
        refused(
                "convolution \"y\", x: expected [N, C, …] with 2 spatial dimensions, got [2, 3, 4]",
                () -> builder.convolution("y", x, wide, plain));
        refused(
                "convolutionBackwardData \"dx\", dy: expected [1, 8, 4, 4], got image FLOAT[1, 6, 4, 4]",
                () -> builder.convolutionBackwardData("dx", image, wide, plain, 1, 6, 8, 8));
        refused(
                "resample MAXPOOL \"y\", x: expected [N, C, …] with 2 spatial dimensions of at least the window [5, 5], got"
                        + " [1, 6, 4, 4]",
                () -> builder.resample("y", image, ResampleConfig.of(ResampleMode.MAXPOOL, 5, 5)));
        refused(
                "strides: expected a number of at least 1 for each of 2 spatial dimensions, got [0, 1]",
                () -> plain.withStrides(0, 1));
        refused(
                "window: expected a number of at least 1 for each of 0 spatial dimensions, got []",
                () -> ResampleConfig.of(ResampleMode.MAXPOOL));
    }

    @Test
    void norms() {
        GraphTensor scale = builder.tensor("scale", DType.FLOAT32, 1, 3, 4);
        GraphTensor wrong = builder.tensor("wrong", DType.FLOAT32, 2, 3, 4);
        refused(
                "LAYER_NORM training \"y\", scale: expected [1, …] with sizes of x FLOAT[2, 3, 4] or 1, got wrong FLOAT[2, 3,"
                        + " 4]",
                () -> builder.normTraining("y", NormMode.LAYER_NORM, x, wrong, null, 1e-5f));
        refused(
                "BATCH_NORM training \"y\", scale: expected [1, C, 1, …] with the channels of x FLOAT[2, 3, 4], got scale"
                        + " FLOAT[1, 3, 4]",
                () -> builder.normTraining("y", NormMode.BATCH_NORM, x, scale, null, 1e-5f));
        refused(
                "RMS_NORM inference \"y\", epsilon: expected a positive number, got 0.0",
                () -> builder.normInference("y", NormMode.RMS_NORM, x, scale, null, 0));
        refused(
                "INSTANCE_NORM inference \"y\", mode: expected LAYER_NORM or RMS_NORM, the others read mean and variance, got"
                        + " INSTANCE_NORM",
                () -> builder.normInference(
                        "y",
                        NormMode.INSTANCE_NORM,
                        x,
                        builder.tensor("channels", DType.FLOAT32, 1, 3, 1),
                        null,
                        1e-5f));
        refused(
                "LAYER_NORM backward \"dx\", invVariance: expected [2, 1, 1], got scale FLOAT[1, 3, 4]",
                () -> builder.normBackward("dx", NormMode.LAYER_NORM, x, x, new NormTraining(x, scale, scale), scale));
    }

    @Test
    void configurations() {
        refused(
                "clip: expected lower <= upper and a slope, got 2.0, 1.0 and 0.0",
                () -> new PointwiseConfig.Clip(2, 1, 0));
        refused("axis: expected at least 0, got -1", () -> PointwiseConfig.DEFAULT.withAxis(-1));
        refused("probability: expected 0 to 1, got 2.0", () -> new RngDistribution.Bernoulli(2));
        refused(
                "minimum, maximum: expected minimum <= maximum, got 2.0 and 1.0",
                () -> new RngDistribution.Uniform(2, 1));
        refused(
                "mean, standardDeviation: expected a number and one of at least 0, got 0.0 and -1.0",
                () -> new RngDistribution.Normal(0, -1));
        refused("workspaceLimit: expected at least 0, got -1", () -> PlanOptions.DEFAULT.withWorkspaceLimit(-1));
        refused("heuristics: expected at least one mode, got none", PlanOptions.DEFAULT::withHeuristics);
        assertEquals(
                Set.of(NumericalNote.FFT, NumericalNote.NONDETERMINISTIC),
                PlanOptions.DEFAULT.without(NumericalNote.FFT).deterministic().refusedNotes());
        refused(
                "rng \"r\", seed: expected one INT32 or INT64, got x FLOAT[2, 3, 4]",
                () -> builder.rng("r", new RngDistribution.Bernoulli(0.5), x, x, 8));
    }

    @Test
    void builders() {
        refused("graph \"g\": expected operations, got none", builder::build);
        GraphTensor y = builder.pointwise("y", PointwiseMode.NEG, x);
        refused(
                "graph \"g\": expected tensors that an operation reads or that are outputs, got y FLOAT[2, 3, 4]",
                builder::build);
        refused(
                "output \"g\", result: expected the result of an operation, got x FLOAT[2, 3, 4]",
                () -> builder.output(x));
        refused(
                "output \"y\", strides: expected 3 of at least 1, over at most 1099511627776 elements, got [1]",
                () -> builder.output(y, DataType.FLOAT, 1));
        builder.output(y);
        builder.build();
        assertThrown(
                IllegalStateException.class,
                "graph \"g\" is built, and takes nothing more",
                () -> builder.pointwise("z", PointwiseMode.NEG, x));
    }

    private ExecutionPlan plan() {
        builder.output(builder.pointwise("y", PointwiseMode.NEG, x));
        return builder.build().plan(open.device());
    }

    private static Tensor tensor(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, dev.chagres.Shape.of(sizes));
    }

    @Test
    void packs() {
        try (ExecutionPlan plan = plan();
                VariantPack pack = plan.variantPack()) {
            refused(
                    "name: expected one of [x FLOAT[2, 3, 4], y FLOAT[2, 3, 4]], got \"w\"",
                    () -> pack.set("w", tensor(DType.FLOAT32, 24)));
            refused(
                    "of: expected one of [x FLOAT[2, 3, 4], y FLOAT[2, 3, 4]], got z FLOAT[2, 3, 4]",
                    () -> pack.set(other, tensor(DType.FLOAT32, 24)));
            refused(
                    "tensor \"x\": expected FLOAT32 with 24 elements for x FLOAT[2, 3, 4], got FLOAT32[23]",
                    () -> pack.set("x", tensor(DType.FLOAT32, 23)));
            refused(
                    "tensor \"x\": expected FLOAT32 with 24 elements for x FLOAT[2, 3, 4], got BFLOAT16[2, 3, 4]",
                    () -> pack.set("x", tensor(DType.BFLOAT16, 2, 3, 4)));
            Tensor long25 = tensor(DType.FLOAT32, 25);
            refused(
                    "tensor \"x\": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does,"
                            + " got a view that does not; copy it into a tensor",
                    () -> pack.set("x", open.scope().view(long25, 1, 24)));
            pack.set("x", tensor(DType.FLOAT32, 24));
            refused("pack: expected a tensor for y FLOAT[2, 3, 4], got none", () -> plan.run(open.stream(), pack));
            Tensor shared = tensor(DType.FLOAT32, 24);
            pack.set("x", shared).set("y", shared);
            refused(
                    "tensor \"y\": expected memory of its own, got some of x FLOAT[2, 3, 4]; it is written to while that is"
                            + " used",
                    () -> plan.run(open.stream(), pack));
            pack.set("y", tensor(DType.FLOAT32, 24));
            plan.run(open.stream(), pack);
            refused(
                    "workspace: expected memory of its own, got some of x FLOAT[2, 3, 4]; it is written to while that is used",
                    () -> plan.run(open.stream(), pack, open.scope().reinterpret(shared, DType.BYTE, 0, 96)));
            refused(
                    "workspace: expected elements of BYTE, got FLOAT32[8]",
                    () -> plan.run(open.stream(), pack, tensor(DType.FLOAT32, 8)));
            Scope nested = open.scope().open();
            pack.set("y", nested.tensor(DType.FLOAT32, 24));
            nested.close();
            assertThrows(IllegalStateException.class, () -> plan.run(open.stream(), pack));
            assertThrown(
                    NullPointerException.class,
                    "pack: expected a value, got null",
                    () -> plan.run(open.stream(), null));
            pack.close();
            assertThrown(
                    IllegalStateException.class,
                    "variant pack of execution plan of graph \"g\" on device 0 is closed",
                    () -> pack.set("x", shared));
        }
    }

    @Test
    void plans() {
        ExecutionPlan plan = plan();
        VariantPack pack =
                plan.variantPack().set("x", tensor(DType.FLOAT32, 24)).set("y", tensor(DType.FLOAT32, 24));
        try (ExecutionPlan second = plan.graph().plan(open.device())) {
            refused("pack: expected one of this plan, got one of another", () -> second.run(open.stream(), pack));
        }
        plan.close();
        plan.close();
        assertThrown(
                IllegalStateException.class,
                "execution plan of graph \"g\" is closed",
                () -> plan.run(open.stream(), pack));
        assertThrown(
                IllegalStateException.class,
                "execution plan of graph \"g\" is closed",
                () -> plan.variantPack().close());
    }

    @Test
    void whatAStreamOfAnotherDeviceAndACaptureRefuse() {
        builder.output(builder.pointwise("y", PointwiseMode.NEG, x));
        OperationGraph graph = builder.build();
        try (Device again = Device.open();
                ExecutionPlan plan = graph.plan(open.device())) {
            VariantPack pack = plan.variantPack();
            Stream stream = again.stream();
            refused(
                    "stream: expected one of device 0, got one of device 0, opened another time",
                    () -> plan.run(stream, pack));
            assertThrows(CaptureException.class, () -> {
                try (Graph captured =
                        open.stream().capture(() -> graph.plan(open.device()).close())) {
                    captured.launch();
                }
            });
        }
    }

    @Test
    void aPlanThatIsNotClosedIsClosedWithItsDevice() {
        builder.output(builder.pointwise("y", PointwiseMode.NEG, x));
        Device again = Device.open();
        ExecutionPlan plan = builder.build().plan(again);
        again.close();
        assertThrown(
                IllegalStateException.class,
                "execution plan of graph \"g\" is closed",
                () -> plan.variantPack().close());
    }

    /** The reference alone: which engines NVIDIA's cuDNN has depends on its release. */
    @Test
    void whatNoEngineComputes() {
        if (Provider.current() != Provider.REFERENCE) {
            return;
        }
        GraphBuilder images = OperationGraph.builder("g");
        GraphTensor image = images.tensor("image", DType.FLOAT32, 1, 8, 4, 4);
        images.output(images.resample("y", image, ResampleConfig.of(ResampleMode.NEAREST, 2, 2)));
        OperationGraph graph = images.build();
        UnsupportedGraphException refused =
                assertThrows(UnsupportedGraphException.class, () -> graph.plan(open.device()));
        assertEquals(
                List.of("heuristics A", "heuristics FALLBACK"),
                refused.reasons().stream()
                        .map(reason -> reason.substring(0, reason.indexOf(':')))
                        .toList());
        assertTrue(
                refused.getMessage()
                        .startsWith(
                                "graph \"g\": no engine of cuDNN computes it within PlanOptions[heuristics=[A, FALLBACK],"),
                refused::getMessage);
        assertTrue(
                refused.reasons()
                        .getFirst()
                        .endsWith("returned CUDNN_STATUS_NOT_SUPPORTED (3000) on device 0:"
                                + " CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR: nearest and bilinear resampling are not"
                                + " computed by the CPU reference"),
                refused::getMessage);
    }

    @Test
    void whatCudnnRefusesHasItsText() {
        if (Provider.current() != Provider.REFERENCE) {
            return;
        }
        GraphBuilder large = OperationGraph.builder("g");
        GraphTensor wide = large.tensor("wide", DType.FLOAT32, 1L << 20, 1L << 10, 1);
        large.output(large.pointwise("y", PointwiseMode.NEG, wide));
        OperationGraph graph = large.build();
        assertThrown(
                CudnnException.class,
                "cuDNN: cudnnBackendFinalize (graph \"g\") returned CUDNN_STATUS_NOT_SUPPORTED (3000) on device 0: tensor 1"
                        + " FLOAT[1048576, 1024, 1]: the CPU reference computes at most 268435456 elements",
                () -> graph.plan(open.device()));
    }
}
