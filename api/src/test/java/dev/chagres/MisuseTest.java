package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.layer.Accumulation;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Gelu;
import dev.chagres.layer.Initializer;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.layer.Residual;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Tensors of a wrong shape, type or device: each is refused by name, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    private final ParameterPlan plan = new ParameterPlan();
    private final Linear linear = new Linear(16, 32, Initializer.normal(1), plan.child("linear"));
    private final LayerNorm norm = new LayerNorm(NormConfig.layerNorm(16), plan.child("norm"));
    private final Embedding embedding = new Embedding(5, 16, Initializer.ones(), plan.child("embedding"));
    private Device device;
    private Stream stream;
    private Scope scope;

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        Parameters.allocate(device, plan, DType.FLOAT32, 1);
    }

    @AfterEach
    void goodCallsStillWork() {
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        Linear.Saved saved = linear.forward(norm.forward(x, scope).output(), scope);
        assertArrayEquals(new float[96], saved.output().toFloats(stream));
        assertEquals(
                Shape.of(3, 16),
                linear.backward(scope.like(saved.output()), saved, Accumulation.OVERWRITE, scope)
                        .shape());
        stream.synchronize();
        device.close();
    }

    @Test
    void wrongShapesRanksAndTypes() {
        String text = "x: expected FLOAT32[T, 16], got ";
        assertThrown(
                ARGUMENT, text + "FLOAT32[3, 17]", () -> linear.forward(scope.tensor(DType.FLOAT32, 3, 17), scope));
        assertThrown(ARGUMENT, text + "FLOAT32[16]", () -> linear.forward(scope.tensor(DType.FLOAT32, 16), scope));
        assertThrown(ARGUMENT, text + "FLOAT32[]", () -> norm.forward(scope.tensor(DType.FLOAT32), scope));
        assertThrown(
                ARGUMENT, text + "FLOAT32[1, 3, 16]", () -> norm.forward(scope.tensor(DType.FLOAT32, 1, 3, 16), scope));
        assertThrown(
                ARGUMENT, text + "BFLOAT16[3, 16]", () -> linear.forward(scope.tensor(DType.BFLOAT16, 3, 16), scope));
        assertThrown(ARGUMENT, text + "INT32[3, 16]", () -> linear.forward(scope.tensor(DType.INT32, 3, 16), scope));
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        Linear.Saved saved = linear.forward(x, scope);
        assertThrown(
                ARGUMENT,
                "dy: expected FLOAT32[3, 32], got FLOAT32[2, 32]",
                () -> linear.backward(scope.tensor(DType.FLOAT32, 2, 32), saved, Accumulation.ADD, scope));
        assertThrown(
                ARGUMENT,
                "ids: expected INT32[T], got FLOAT32[3]",
                () -> embedding.forward(scope.tensor(DType.FLOAT32, 3), scope));
    }

    @Test
    void integersWhereFloatsAreWanted() {
        Tensor ints = scope.tensor(DType.INT32, 3, 16);
        String text = ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[3, 16]";
        assertThrown(ARGUMENT, "x" + text, () -> Gelu.forward(ints, scope));
        assertThrown(ARGUMENT, "x" + text, () -> new Residual(Dropout.none()).forward(ints, ints, scope));
        assertThrown(
                ARGUMENT,
                "logits: expected [T, at least 2 columns] of floats, got INT32[3, 16]",
                () -> new CrossEntropy(2).forward(ints, scope.tensor(DType.INT32, 3), scope));
        assertThrown(
                ARGUMENT,
                "dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got INT32",
                () -> Parameters.allocate(device, plan, DType.INT32, 1));
    }

    @Test
    void tensorsOfAnotherDevice() {
        try (Device other = Device.open();
                Scope there = other.openScope();
                HostBuffer buffer = HostBuffer.pageable(other, 192)) {
            Tensor x = there.tensor(DType.FLOAT32, 3, 16);
            x.zero(other.stream());
            String text = ": expected a tensor of device 0, got FLOAT32[3, 16] of device 0, opened another time";
            assertThrown(ARGUMENT, "x" + text, () -> linear.forward(x, scope));
            assertThrown(ARGUMENT, "tensor" + text, () -> scope.view(x, 0, 48));
            assertThrown(
                    ARGUMENT,
                    "stream: expected one of device 0, got stream of device 0",
                    () -> scope.tensor(DType.FLOAT32, 3, 16).copyFrom(other.stream(), buffer));
            Tensor mine = scope.tensor(DType.FLOAT32, 3, 16);
            mine.zero(stream);
            assertThrown(
                    ARGUMENT,
                    "scope: expected one of device 0, where parameter linear.weight lies, got scope of device 0",
                    () -> linear.forward(x, there));
            assertArrayEquals(new float[48], x.toFloats(other.stream()));
        }
    }

    @Test
    void nothingInsteadOfATensor() {
        assertThrown(NullPointerException.class, "x: expected a value, got null", () -> linear.forward(null, scope));
        assertThrown(NullPointerException.class, "x: expected a value, got null", () -> Gelu.forward(null, scope));
        assertThrown(
                NullPointerException.class,
                "initializer: expected a value, got null",
                () -> new Linear(1, 1, null, new ParameterPlan()));
        assertThrows(NullPointerException.class, () -> linear.forward(scope.tensor(DType.FLOAT32, 1, 16), null));
        assertThrows(NullPointerException.class, () -> scope.tensor(null, 3));
        assertThrows(NullPointerException.class, () -> scope.view(null, 0, 3));
        assertThrows(
                NullPointerException.class, () -> scope.tensor(DType.FLOAT32, 3).set(null, 1f));
        assertThrows(NullPointerException.class, () -> device.openScope(null));
        assertThrows(NullPointerException.class, () -> Parameters.allocate(device, null, DType.FLOAT32, 1));
        assertThrows(
                NullPointerException.class, () -> linear.backward(scope.tensor(DType.FLOAT32, 1), null, null, scope));
    }

    @Test
    void numbersThatAreNoneAndIdentifiersOutOfRange() {
        Tensor ids = scope.tensor(DType.INT32, 4);
        ids.set(stream, -1, 5, Integer.MAX_VALUE, Integer.MIN_VALUE);
        Tensor rows = embedding.forward(ids, scope);
        assertArrayEquals(new float[64], rows.toFloats(stream), "ids out of range give rows of zeros");
        embedding.backward(rows, ids, Accumulation.OVERWRITE, scope);
        assertArrayEquals(new float[80], embedding.weight().gradient().toFloats(stream), "and no gradient");
        Tensor logits = scope.tensor(DType.FLOAT32, 4, 7);
        float[] wild = new float[28];
        for (int i = 0; i < wild.length; i++) {
            wild[i] = new float[] {Float.NaN, Float.POSITIVE_INFINITY, -Float.MAX_VALUE, 1}[i % 4];
        }
        logits.set(stream, wild);
        CrossEntropy loss = new CrossEntropy(5);
        CrossEntropy.Saved saved = loss.forward(logits, ids, scope);
        assertEquals(0, saved.counted().toInts(stream)[0], "labels out of range do not count");
        assertEquals(0f, saved.loss().toFloats(stream)[0]);
        assertArrayEquals(new float[28], loss.backward(saved, 1, scope).toFloats(stream));
        for (float factor : new float[] {Float.NaN, Float.NEGATIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "factor: expected a finite number, got " + factor,
                    () -> loss.backward(saved, factor, scope));
        }
        Tensor x = scope.tensor(DType.FLOAT32, 4, 16);
        float[] numbers = new float[64];
        numbers[3] = Float.NaN;
        numbers[20] = Float.POSITIVE_INFINITY;
        x.set(stream, numbers);
        Linear.Saved wildly = linear.forward(norm.forward(x, scope).output(), scope);
        linear.backward(wildly.output(), wildly, Accumulation.ADD, scope);
        assertTrue(Float.isNaN(wildly.output().toFloats(stream)[0]));
    }

    @Test
    void recordsOfSumsWithAndWithoutDropout() {
        Tensor x = scope.tensor(DType.FLOAT32, 8, 32);
        Residual plain = new Residual(Dropout.none());
        Residual half = new Residual(Dropout.of(0.5f, new Philox(3)));
        Residual.Saved kept = plain.forward(x, x, scope);
        Residual.Saved dropped = half.forward(x, x, scope);
        assertThrown(
                ARGUMENT,
                "saved: expected the record of a sum with dropout probability 0.5, got one without dropout",
                () -> half.backward(x, kept, scope));
        assertThrown(
                ARGUMENT,
                "saved: expected the record of a sum with dropout probability 0.0, got one with dropout",
                () -> plain.backward(x, dropped, scope));
        assertThrown(
                ARGUMENT,
                "saved.mask: expected BYTE[32], got BYTE[31]",
                () -> half.backward(x, new Residual.Saved(dropped.output(), scope.tensor(DType.BYTE, 31)), scope));
    }
}
