package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.DotProductAttention;
import dev.chagres.attention.SavedAttention;
import dev.chagres.attention.Sequences;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** A device and an attention for tests of misuse; after each, a good call must still work. */
abstract class AttentionMisuse {
    static final int HEADS = 2;
    static final int HEAD_DIM = 16;
    static final int WIDTH = HEADS * HEAD_DIM;

    final DotProductAttention attention = attention();
    Device device;
    Stream stream;
    Scope scope;

    static DotProductAttention attention() {
        return new DotProductAttention(AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.none(), Dropout.none()));
    }

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
    }

    @AfterEach
    void goodCallsStillWork() {
        try (Scope fresh = device.openScope()) {
            SavedAttention saved = packed(fresh, 0, 3, 3, 8);
            assertEquals(0, saved.output().toFloats(stream)[0]);
            Tensor dqkv = fresh.tensor(DType.BFLOAT16, 8, 3 * WIDTH);
            Tensor dO = fresh.like(saved.output());
            dO.zero(stream);
            attention.backwardPacked(dO, saved, dqkv, fresh);
            assertArrayEquals(new float[8 * 3 * WIDTH], dqkv.toFloats(stream));
        }
        device.close();
    }

    SavedAttention packed(Scope in, int... offsets) {
        Tensor qkv = zeros(in, offsets[offsets.length - 1], 3 * WIDTH);
        return attention.forwardPacked(qkv, Sequences.packed(CuSeqlens.of(in, offsets)), in);
    }

    Tensor zeros(Scope in, long rows, long columns) {
        Tensor tensor = in.tensor(DType.BFLOAT16, rows, columns);
        tensor.zero(stream);
        return tensor;
    }
}
