package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.pass.Pass;
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
    Pass pass;

    static DotProductAttention attention() {
        return new DotProductAttention(AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.none()));
    }

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        pass = Pass.training(device).begin();
    }

    @AfterEach
    void goodCallsStillWork() {
        pass.close();
        try (Pass fresh = Pass.training(device)) {
            Tensor output = packed(fresh, 0, 3, 3, 8);
            assertEquals(0, output.toFloats(stream)[0]);
            Tensor dqkv = fresh.scope().tensor(DType.BFLOAT16, 8, 3 * WIDTH);
            Tensor dO = zeros(fresh.scope(), 8, WIDTH);
            attention.backwardPacked(dO, dqkv, fresh);
            assertArrayEquals(new float[8 * 3 * WIDTH], dqkv.toFloats(stream));
        }
        device.close();
    }

    /** Attends over zeros in a micro-batch of its own. */
    Tensor packed(Pass in, int... offsets) {
        in.begin();
        in.sequences(Sequences.packed(CuSeqlens.of(in.scope(), offsets)));
        return attention.forwardPacked(zeros(in.scope(), offsets[offsets.length - 1], 3 * WIDTH), in);
    }

    Tensor zeros(Scope in, long rows, long columns) {
        Tensor tensor = in.tensor(DType.BFLOAT16, rows, columns);
        tensor.zero(stream);
        return tensor;
    }
}
