package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.SgdStep;
import dev.chagres.te.MultiTensor.WeightDecay;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code TensorLists} and {@code MultiTensor} refuse. */
@Tag("L0")
@Tag("L1")
class MultiTensorMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor scalar(double value) {
        return open.tensor(DType.FLOAT32, new double[] {value}, 1);
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void adam(
            Tensor flag, TensorLists lists, Tensor lr, Tensor step, @Nullable WeightDecay mode, Tensor scale) {
        new MultiTensorAdam(0.9f, 0.98f, 1e-8f, mode, BiasCorrection.YES, 0)
                .adamCapturable(flag, lists, lr, step, scale, open.stream());
    }

    @Test
    void refusedLists() {
        Tensor a = of(DType.FLOAT32, 4);
        Tensor b = of(DType.FLOAT32, 5);
        assertThrown(IllegalArgumentException.class, "lists: expected at least one, got none", TensorLists::of);
        assertThrown(
                IllegalArgumentException.class,
                "list 1: expected 2 tensors as in list 0, got 1",
                () -> TensorLists.of(new Tensor[] {a, b}, new Tensor[] {of(DType.FLOAT32, 4)}));
        assertThrown(
                IllegalArgumentException.class,
                "list 1, tensor 0: expected as many elements as list 0, tensor 0 has, from 1 to 1073741824, got FLOAT32[5]",
                () -> TensorLists.of(new Tensor[] {a}, new Tensor[] {b}));
        assertThrown(
                IllegalArgumentException.class,
                "list 0, tensor 0: expected as many elements as list 0, tensor 0 has, from 1 to 1073741824, got FLOAT32[0]",
                () -> TensorLists.of(new Tensor[] {of(DType.FLOAT32, 0)}));
        assertThrown(
                IllegalArgumentException.class,
                "list 1, tensor 0: expected memory of its own, got some of list 0, tensor 0's; it is written to while that is"
                        + " read or written",
                () -> TensorLists.of(new Tensor[] {a}, new Tensor[] {a}));
        assertThrown(
                IllegalArgumentException.class,
                "count: expected no negative number, got -1",
                () -> TensorLists.ofRange(open.scope(), 0, -1, a));
        Tensor integers = of(DType.INT8, 4);
        assertThrown(
                IllegalArgumentException.class,
                "list 1, tensor 0: expected elements of a type that Transformer Engine has, got INT8[4]; only copies"
                        + " and collectives take INT8",
                () -> TensorLists.of(new Tensor[] {a}, new Tensor[] {integers}));
        assertThrown(
                IllegalArgumentException.class,
                "buffers[1]: expected elements of a type that Transformer Engine has, got INT8[4]; only copies and"
                        + " collectives take INT8",
                () -> TensorLists.ofRange(open.scope(), 0, 4, a, integers));
    }

    @Test
    void refusedScaling() {
        Tensor flag = open.ints(0);
        Tensor x = of(DType.FLOAT32, 4);
        Tensor scale = scalar(2);
        try (TensorLists one = TensorLists.of(new Tensor[] {x});
                TensorLists bytes = TensorLists.of(new Tensor[] {x}, new Tensor[] {of(DType.INT32, 4)});
                TensorLists two = TensorLists.of(new Tensor[] {x}, new Tensor[] {of(DType.FLOAT32, 4)})) {
            assertThrown(
                    IllegalArgumentException.class,
                    "lists: expected 2 lists, got 1",
                    () -> MultiTensor.scaleTensor(flag, one, scale, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "list 1, tensor 0: expected elements of FLOAT32, BFLOAT16 or FLOAT16, got INT32[4]",
                    () -> MultiTensor.scaleTensor(flag, bytes, scale, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "scale: expected FLOAT32[1], got INT32[1]",
                    () -> MultiTensor.scaleTensor(flag, two, flag, open.stream()));
        }
    }

    @Test
    void refusedFactorsOfTheHostAndUnscaledNorms() {
        Tensor flag = open.ints(0);
        Tensor x = of(DType.FLOAT32, 4);
        Tensor norm = scalar(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        try (TensorLists one = TensorLists.of(new Tensor[] {x});
                TensorLists bytes = TensorLists.of(new Tensor[] {x}, new Tensor[] {of(DType.INT32, 4)})) {
            assertThrown(
                    IllegalArgumentException.class,
                    "lists: expected 2 lists, got 1",
                    () -> MultiTensor.scale(flag, one, 2, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "list 1, tensor 0: expected elements of FLOAT32, BFLOAT16 or FLOAT16, got INT32[4]",
                    () -> MultiTensor.scale(flag, bytes, 2, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "isInfinite: expected INT32[1], got FLOAT32[1]",
                    () -> MultiTensor.scale(norm, bytes, 2, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "lists: expected 1 lists, got 2",
                    () -> MultiTensor.unscaleL2norm(flag, bytes, norm, partials, norm, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "invScale: expected FLOAT32[1], got INT32[1]",
                    () -> MultiTensor.unscaleL2norm(flag, one, flag, partials, norm, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "norm: expected memory of its own, got some of invScale's; it is written to while that is read or written",
                    () -> MultiTensor.unscaleL2norm(flag, one, norm, partials, norm, open.stream()));
        }
    }

    @Test
    void listsThatAreGone() {
        Tensor flag = open.ints(0);
        Tensor norm = scalar(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        TensorLists closed = TensorLists.of(new Tensor[] {of(DType.FLOAT32, 4)});
        closed.close();
        closed.close();
        assertThrown(
                IllegalStateException.class,
                "tensor lists are closed",
                () -> MultiTensor.l2norm(flag, closed, partials, norm, open.stream()));
        try (Scope scope = open.device().openScope();
                TensorLists lists = TensorLists.of(new Tensor[] {scope.tensor(DType.FLOAT32, 4)})) {
            scope.restart();
            scope.tensor(DType.FLOAT32, 4);
            assertThrown(
                    IllegalStateException.class,
                    "list 0, tensor 0: its scope was restarted since the lists were made, and may have handed out its memory for"
                            + " something else; make the lists again",
                    () -> MultiTensor.l2norm(flag, lists, partials, norm, open.stream()));
        }
    }

    @Test
    void refusedNorms() {
        Tensor flag = open.ints(0);
        Tensor norm = scalar(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor x = of(DType.FLOAT32, 400);
        try (TensorLists two = TensorLists.of(new Tensor[] {x}, new Tensor[] {of(DType.FLOAT32, 400)});
                TensorLists mixed = TensorLists.of(new Tensor[] {x, of(DType.BFLOAT16, 4)});
                TensorLists integers = TensorLists.of(new Tensor[] {of(DType.INT32, 4)});
                TensorLists one = TensorLists.of(new Tensor[] {x})) {
            refusedNorm("lists: expected 1 lists, got 2", flag, two, partials, norm);
            refusedNorm("list 0, tensor 1: expected elements of FLOAT32, got BFLOAT16[4]", flag, mixed, partials, norm);
            refusedNorm(
                    "list 0, tensor 0: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[4]",
                    flag,
                    integers,
                    partials,
                    norm);
            refusedNorm("partials: expected FLOAT32[320], got FLOAT32[400]", flag, one, x, norm);
            refusedNorm("noopFlag: expected INT32[1], got FLOAT32[1]", norm, one, partials, norm);
            refusedNorm(
                    "partials: expected memory of its own, got some of list 0, tensor 0's; one is written to while the other"
                            + " is read or written",
                    flag,
                    one,
                    open.scope().view(x, 0, 320),
                    norm);
        }
    }

    private static void refusedNorm(String text, Tensor flag, TensorLists lists, Tensor partials, Tensor norm) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> MultiTensor.l2norm(flag, lists, partials, norm, open.stream()));
    }

    @Test
    void refusedSteps() {
        Tensor flag = open.ints(0);
        Tensor step = open.ints(1);
        Tensor scale = scalar(1);
        Tensor lr = scalar(1);
        try (TensorLists mixed = TensorLists.of(
                        new Tensor[] {of(DType.FLOAT32, 4)},
                        new Tensor[] {of(DType.BFLOAT16, 4)},
                        new Tensor[] {of(DType.FLOAT32, 4)},
                        new Tensor[] {of(DType.FLOAT32, 4)});
                TensorLists three = TensorLists.of(
                        new Tensor[] {of(DType.FLOAT32, 4)},
                        new Tensor[] {of(DType.FLOAT32, 4)},
                        new Tensor[] {of(DType.FLOAT32, 4)})) {
            assertThrown(
                    IllegalArgumentException.class,
                    "list 1, tensor 0: expected elements of FLOAT32, got BFLOAT16[4]",
                    () -> adam(flag, mixed, lr, step, WeightDecay.L2, scale));
            assertThrown(
                    IllegalArgumentException.class,
                    "lists: expected 4 lists, got 3",
                    () -> adam(flag, three, lr, step, WeightDecay.L2, scale));
            assertThrown(
                    IllegalArgumentException.class,
                    "step: expected INT32[1], got FLOAT32[1]",
                    () -> adam(flag, mixed, lr, scale, WeightDecay.L2, scale));
            assertThrown(
                    NullPointerException.class,
                    "mode: expected a value, got null",
                    () -> adam(flag, mixed, lr, step, null, scale));
        }
        refusedNumbers("beta1, beta2: expected numbers within [0, 1), got 1.0 and 0.5", 1, 0.5f, 1e-8f, 0);
        refusedNumbers("epsilon: expected a positive number, got NaN", 0.5f, 0.5f, Float.NaN, 0);
        refusedNumbers("epsilon: expected a positive number, got 0.0", 0.5f, 0, 0, 0);
        refusedNumbers("weightDecay: expected a number of at least 0, got -1.0", 0.5f, 0.5f, 1e-8f, -1);
    }

    private static void refusedNumbers(String text, float beta1, float beta2, float epsilon, float decay) {
        try (TensorLists lists =
                TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0], new Tensor[0], new Tensor[0])) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new MultiTensorAdam(beta1, beta2, epsilon, WeightDecay.L2, BiasCorrection.NO, decay)
                            .adamCapturableMaster(
                                    open.ints(0), lists, scalar(1), open.ints(1), scalar(1), open.stream()));
        }
    }

    @Test
    void refusedScales() {
        Tensor[] amax = {of(DType.FLOAT32, 4)};
        Tensor[] scale = {of(DType.FLOAT32, 4)};
        Tensor[] inverse = {of(DType.FLOAT32, 4)};
        QuantizationConfig config = QuantizationConfig.standard();
        try (TensorLists good = TensorLists.of(amax, scale, inverse);
                TensorLists two = TensorLists.of(amax, scale);
                TensorLists half = TensorLists.of(amax, scale, new Tensor[] {of(DType.FLOAT16, 4)})) {
            refusedScales("lists: expected 3 lists, got 2", two, DType.FLOAT8_E4M3, config);
            refusedScales(
                    "list 2, tensor 0: expected elements of FLOAT32, got FLOAT16[4]", half, DType.FLOAT8_E4M3, config);
            refusedScales("dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got BFLOAT16", good, DType.BFLOAT16, config);
            QuantizationConfig flagged = config.withNoop(of(DType.FLOAT32, 1));
            refusedScales(
                    "config: expected one without a flag, which TE's kernel does not read, got " + flagged,
                    good,
                    DType.FLOAT8_E4M3,
                    flagged);
        }
    }

    private static void refusedScales(String text, TensorLists lists, DType dtype, QuantizationConfig config) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> MultiTensor.computeScaleAndScaleInverse(lists, dtype, config, open.stream()));
    }

    private static Tensor[] one(DType dtype, long count) {
        return new Tensor[] {of(dtype, count)};
    }

    private static void adamFp8(TensorLists lists, float lr, int step, DType dtype) {
        new MultiTensorAdam(0.9f, 0.98f, 1e-8f, WeightDecay.L2, BiasCorrection.YES, 0)
                .adamFp8(lists, lr, step, dtype, open.stream());
    }

    @Test
    void refusedStepsOnWeightsInEightBits() {
        DType e4m3 = DType.FLOAT8_E4M3;
        Tensor[][] shaped = {
            one(DType.FLOAT32, 4), one(e4m3, 4), one(DType.FLOAT32, 4), one(DType.FLOAT32, 4), one(DType.FLOAT32, 4)
        };
        Tensor[] cell = {scalar(1)};
        Tensor[] amax = {scalar(0)};
        Tensor[] inverse = {scalar(0)};
        assertThrown(
                IllegalArgumentException.class,
                "list 6, tensor 0: expected FLOAT32[1], got FLOAT32[2]",
                () -> TensorLists.ofScaled(shaped, cell, one(DType.FLOAT32, 2), inverse));
        assertThrown(
                IllegalArgumentException.class,
                "list 7: expected 1 tensors as in list 0, got 0",
                () -> TensorLists.ofScaled(shaped, cell, amax, new Tensor[0]));
        assertThrown(
                IllegalArgumentException.class,
                "lists: expected at least one, got none",
                () -> TensorLists.ofScaled(new Tensor[0][], cell, amax, inverse));
        try (TensorLists lists = TensorLists.ofScaled(shaped, cell, amax, inverse);
                TensorLists plain = TensorLists.of(
                        cell,
                        amax,
                        inverse,
                        one(DType.FLOAT32, 1),
                        one(DType.FLOAT32, 1),
                        one(DType.FLOAT32, 1),
                        one(DType.FLOAT32, 1),
                        one(DType.FLOAT32, 1))) {
            refusedAdamFp8(
                    "lists: expected lists of TensorLists.ofScaled, got some of TensorLists.of", plain, 1, 1, e4m3);
            refusedAdamFp8("lr: expected a number of at least 0, got -1.0", lists, -1, 1, e4m3);
            refusedAdamFp8("step: expected the number of a step, from 1 on, got 0", lists, 1, 0, e4m3);
            refusedAdamFp8(
                    "list 1, tensor 0: expected elements of FLOAT8_E5M2, got FLOAT8_E4M3[4]",
                    lists,
                    1,
                    1,
                    DType.FLOAT8_E5M2);
            refusedAdamFp8("dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got INT32", lists, 1, 1, DType.INT32);
            assertThrown(
                    IllegalArgumentException.class,
                    "lists: expected 4 lists, got 8",
                    () -> adam(open.ints(0), lists, scalar(1), open.ints(1), WeightDecay.L2, scalar(1)));
        }
    }

    private static void refusedAdamFp8(String text, TensorLists lists, float lr, int step, DType dtype) {
        assertThrown(IllegalArgumentException.class, text, () -> adamFp8(lists, lr, step, dtype));
    }

    @Test
    void refusedStepsOfStochasticGradientDescent() {
        Tensor flag = open.ints(0);
        SgdConfig config = SgdConfig.of(1e-2f);
        try (TensorLists bfloats =
                        TensorLists.of(one(DType.BFLOAT16, 4), one(DType.BFLOAT16, 4), one(DType.BFLOAT16, 4));
                TensorLists mixed =
                        TensorLists.of(one(DType.FLOAT16, 4), one(DType.FLOAT32, 4), one(DType.FLOAT32, 4));
                TensorLists two = TensorLists.of(one(DType.FLOAT32, 4), one(DType.FLOAT32, 4))) {
            refusedSgd("lists: expected 3 lists, got 2", flag, two, config);
            refusedSgd("list 1, tensor 0: expected elements of FLOAT16, got FLOAT32[4]", flag, mixed, config);
            refusedSgd(
                    "list 0, tensor 0: expected elements of FLOAT32 or FLOAT16, which TE's kernel has, got BFLOAT16[4]",
                    flag,
                    bfloats,
                    config);
            refusedSgd("noopFlag: expected INT32[1], got FLOAT32[1]", scalar(0), mixed, config);
        }
        assertThrown(
                IllegalArgumentException.class,
                "learningRate: expected a number of at least 0, got NaN",
                () -> SgdConfig.of(Float.NaN));
        assertThrown(
                IllegalArgumentException.class,
                "dampening: expected a number, got Infinity",
                () -> config.withMomentum(0.9f, Float.POSITIVE_INFINITY));
        assertThrown(
                IllegalArgumentException.class,
                "kind: NESTEROV expects a momentum above 0 without dampening, got momentum 0.0 and dampening 0.0",
                () -> config.withNesterov(0));
    }

    private static void refusedSgd(String text, Tensor flag, TensorLists lists, SgdConfig config) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> MultiTensor.sgd(flag, lists, config, SgdStep.LATER, open.stream()));
    }
}
