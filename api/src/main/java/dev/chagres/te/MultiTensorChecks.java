package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.RecipeUpdates.RecipeChecks;
import java.lang.foreign.MemorySegment;

/**
 * Checks of the arguments of {@link MultiTensor}. Each returns the native array of lists.
 *
 * <p>Threading: the device's thread.
 */
final class MultiTensorChecks {
    private static final int GRADIENT = 0;

    /** g, p, v; then perhaps a copy of p. */
    private static final int SGD_LISTS = 3;

    private MultiTensorChecks() {}

    static MemorySegment norm(Tensor noopFlag, TensorLists lists, Tensor partials, Tensor norm, Stream stream) {
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        MemorySegment array = listed(lists, 1, stream);
        Checks.vector(stream, "partials", partials, DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Checks.vector(stream, "norm", norm, DType.FLOAT32, 1);
        for (int j = 0; j < lists.tensorCount(); j++) {
            Tensor tensor = lists.tensor(0, j);
            ofType(lists, 0, j, floats(lists));
            apart("noopFlag", noopFlag, 0, j, tensor);
            apart("partials", partials, 0, j, tensor);
            apart("norm", norm, 0, j, tensor);
        }
        Checks.writable("noopFlag", noopFlag);
        Checks.writable("partials", partials);
        Checks.writable("norm", norm);
        Checks.apart("partials", partials, "noopFlag", noopFlag);
        Checks.apart("norm", norm, "noopFlag", noopFlag);
        Checks.apart("norm", norm, "partials", partials);
        return array;
    }

    static MemorySegment sgd(Tensor noopFlag, TensorLists lists, Stream stream) {
        Checks.vector(stream, "noopFlag", noopFlag, DType.INT32, 1);
        boolean copies = Checks.given("lists", lists).listCount() == SGD_LISTS + 1;
        MemorySegment array = listed(lists, copies ? SGD_LISTS + 1 : SGD_LISTS, stream);
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType type = lists.tensor(GRADIENT, 0).dtype();
            if (type != DType.FLOAT32 && type != DType.FLOAT16) {
                throw new IllegalArgumentException(TensorLists.name(GRADIENT, 0)
                        + ": expected elements of FLOAT32 or FLOAT16, which TE's kernel has, got "
                        + Checks.describe(lists.tensor(GRADIENT, 0)));
            }
            for (int i = 0; i < lists.listCount(); i++) {
                DType other = copies ? DType.FLOAT32 : type;
                ofType(lists, i, j, i == GRADIENT ? type : i == SGD_LISTS ? DType.FLOAT16 : other);
                apart("noopFlag", noopFlag, i, j, lists.tensor(i, j));
            }
        }
        return array;
    }

    static MemorySegment scaled(Tensor isInfinite, TensorLists lists, Tensor scale, Stream stream) {
        Checks.vector(stream, "isInfinite", isInfinite, DType.INT32, 1);
        MemorySegment array = listed(lists, 2, stream);
        Checks.vector(stream, "scale", scale, DType.FLOAT32, 1);
        scaledPairs(isInfinite, lists);
        for (int j = 0; j < lists.tensorCount(); j++) {
            apart("scale", scale, 1, j, lists.tensor(1, j));
        }
        return array;
    }

    static MemorySegment scaled(Tensor isInfinite, TensorLists lists, Stream stream) {
        Checks.vector(stream, "isInfinite", isInfinite, DType.INT32, 1);
        MemorySegment array = listed(lists, 2, stream);
        scaledPairs(isInfinite, lists);
        return array;
    }

    private static void scaledPairs(Tensor isInfinite, TensorLists lists) {
        for (int j = 0; j < lists.tensorCount(); j++) {
            DType from = floats(lists);
            DType to = lists.tensor(1, 0).dtype();
            if (!to.isFloat()) {
                throw new IllegalArgumentException(
                        TensorLists.name(1, 0) + ": expected elements of FLOAT32, BFLOAT16 or" + " FLOAT16, got "
                                + Checks.describe(lists.tensor(1, 0)));
            }
            for (int i = 0; i < 2; i++) {
                ofType(lists, i, j, i == 0 ? from : to);
                apart("isInfinite", isInfinite, i, j, lists.tensor(i, j));
            }
        }
        Checks.writable("isInfinite", isInfinite);
    }

    static MemorySegment scales(TensorLists lists, DType dtype, QuantizationConfig config, Stream stream) {
        Checks.given("stream", stream);
        MemorySegment array = listed(lists, 3, stream);
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < lists.tensorCount(); j++) {
                ofType(lists, i, j, DType.FLOAT32);
            }
        }
        RecipeChecks.float8(dtype);
        if (Checks.given("config", config).noop() != null) {
            throw new IllegalArgumentException(
                    "config: expected one without a flag, which TE's kernel does not read, got " + config);
        }
        return array;
    }

    static MemorySegment listed(TensorLists lists, int count, Stream stream) {
        return listed(lists, count, 0, stream);
    }

    static MemorySegment listed(TensorLists lists, int count, int cells, Stream stream) {
        MemorySegment array = Checks.given("lists", lists).lists();
        if (lists.listCount() != count) {
            throw new IllegalArgumentException("lists: expected " + count + " lists, got " + lists.listCount());
        }
        if (lists.cellLists() != cells) {
            throw new IllegalArgumentException(
                    cells == 0
                            ? "lists: expected lists of TensorLists.of, got some of TensorLists.ofScaled"
                            : "lists: expected lists of TensorLists.ofScaled, got some of TensorLists.of");
        }
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < lists.tensorCount(); j++) {
                Checks.on(stream, "lists", lists.tensor(i, j));
                Checks.writable("lists", lists.tensor(i, j));
            }
        }
        return array;
    }

    /** Returns the type of the first tensor of the first list, after a check that all of that list have it. */
    static DType floats(TensorLists lists) {
        return floats(lists, 0);
    }

    /** Returns the type of the first tensor of a list, after a check that all of that list have it. */
    static DType floats(TensorLists lists, int list) {
        Tensor first = lists.tensor(list, 0);
        if (!first.dtype().isFloat()) {
            throw new IllegalArgumentException(TensorLists.name(list, 0)
                    + ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got " + Checks.describe(first));
        }
        return first.dtype();
    }

    static void ofType(TensorLists lists, int list, int index, DType type) {
        Tensor tensor = lists.tensor(list, index);
        if (tensor.dtype() != type) {
            throw new IllegalArgumentException(TensorLists.name(list, index) + ": expected elements of " + type
                    + ", got " + Checks.describe(tensor));
        }
    }

    static void apart(String argument, Tensor tensor, int list, int index, Tensor other) {
        if (Checks.overlaps(tensor, other)) {
            throw new IllegalArgumentException(argument + ": expected memory of its own, got some of "
                    + TensorLists.name(list, index) + "'s; one is written to while the other is read or written");
        }
    }
}
