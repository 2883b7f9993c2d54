package dev.chagres.trainer;

import dev.chagres.DType;
import java.util.Locale;

/** Values of {@code --reduce-dtype}: the type in which ranks sum gradients. */
enum ReduceType {
    FP32(DType.FLOAT32),
    BF16(DType.BFLOAT16),
    FP16(DType.FLOAT16);

    private final DType dtype;

    ReduceType(DType dtype) {
        this.dtype = dtype;
    }

    DType dtype() {
        return dtype;
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
