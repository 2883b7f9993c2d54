package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * The checks of copies into FlashAttention's layouts.
 *
 * <p>Threading: the device's thread.
 */
final class FlashAttentionChecks {
    /** TE starts 32 threads per token, or a block per 1024 tokens in a grid's second dimension. */
    private static final int MOST_TOKENS = (1 << 26) - 1;

    private static final int MOST_HEADS = 65_535;
    private static final int HEAD_DIM = 128;
    private static final int WORD_BYTES = 4;
    private static final int VECTOR_BYTES = 16;

    private FlashAttentionChecks() {}

    static void forward(Tensor qkvi, Tensor qkv, Stream stream) {
        heads("qkvi", qkvi, "[S, B, h, ", 3 * HEAD_DIM, stream);
        Checks.on(stream, "qkv", qkv);
        boolean fits = qkv.dtype() == qkvi.dtype()
                && qkv.rank() == 4
                && qkv.size(0) == 3 * qkvi.size(1)
                && qkv.size(1) == qkvi.size(0)
                && qkv.size(2) == qkvi.size(2)
                && qkv.size(3) == HEAD_DIM;
        if (!fits) {
            throw new IllegalArgumentException("qkv: expected " + qkvi.dtype() + "[" + 3 * qkvi.size(1) + ", "
                    + qkvi.size(0) + ", " + qkvi.size(2) + ", " + HEAD_DIM + "], got " + Checks.describe(qkv));
        }
        Checks.aligned("qkv", qkv);
        Checks.writable("qkv", qkv);
        Checks.apart("qkv", qkv, "qkvi", qkvi);
    }

    static void backward(Tensor q, Tensor k, Tensor v, Tensor qkv, Stream stream) {
        heads("q", q, "[B, S, h, ", HEAD_DIM, stream);
        Checks.like(stream, "k", k, q);
        Checks.like(stream, "v", v, q);
        Checks.on(stream, "qkv", qkv);
        boolean fits = qkv.dtype() == q.dtype()
                && qkv.rank() == 4
                && qkv.size(0) == q.size(1)
                && qkv.size(1) == q.size(0)
                && qkv.size(2) == q.size(2)
                && qkv.size(3) == 3 * HEAD_DIM;
        if (!fits) {
            throw new IllegalArgumentException("qkv: expected " + q.dtype() + "[" + q.size(1) + ", " + q.size(0) + ", "
                    + q.size(2) + ", " + 3 * HEAD_DIM + "], got " + Checks.describe(qkv));
        }
        Checks.aligned("k", k);
        Checks.aligned("v", v);
        Checks.aligned("qkv", qkv);
        Checks.writable("qkv", qkv);
        Checks.apart("qkv", qkv, "q", q);
        Checks.apart("qkv", qkv, "k", k);
        Checks.apart("qkv", qkv, "v", v);
    }

    private static void heads(String argument, Tensor tensor, String sizes, int last, Stream stream) {
        Checks.on(stream, argument, tensor);
        boolean fits = (tensor.dtype() == DType.FLOAT16 || tensor.dtype() == DType.BFLOAT16)
                && tensor.rank() == 4
                && tensor.size(0) <= MOST_TOKENS
                && tensor.size(1) <= MOST_TOKENS
                && tensor.size(0) * tensor.size(1) <= MOST_TOKENS
                && tensor.size(2) <= MOST_HEADS
                && tensor.size(3) == last;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected FLOAT16 or BFLOAT16" + sizes + last
                    + "] with S B at most " + MOST_TOKENS + " and h at most " + MOST_HEADS + ", got "
                    + Checks.describe(tensor));
        }
        Checks.aligned(argument, tensor);
    }

    static void transpose(Tensor[] inputs, Tensor[] outputs, QkvFormat format, Stream stream) {
        Padding.checkNumbers(inputs, outputs, stream);
        if (Checks.given("originalFormat", format) == QkvFormat.THD) {
            throw new IllegalArgumentException("originalFormat: expected BSHD or SBHD, got THD");
        }
        int batch = format == QkvFormat.BSHD ? 0 : 1;
        for (int i = 0; i < inputs.length; i++) {
            Checks.on(stream, "input", inputs[i]);
            Checks.on(stream, "output", outputs[i]);
            transposedInput(inputs, i, batch, format);
            transposedOutput(inputs[i], outputs[i], i, batch);
        }
        Padding.checkApart(inputs, outputs);
    }

    private static void transposedInput(Tensor[] inputs, int i, int batch, QkvFormat format) {
        Tensor input = inputs[i];
        Checks.withCode(i, "input", input);
        boolean fits = input.rank() == 4
                && input.dtype() == inputs[0].dtype()
                && input.size(batch) == inputs[0].size(batch)
                && input.size(1 - batch) <= MOST_TOKENS
                && Math.multiplyHigh(input.size(batch), input.size(2)) == 0
                && input.size(batch) * input.size(2) <= Integer.MAX_VALUE
                && input.size(3) * input.dtype().byteSize() % WORD_BYTES == 0;
        if (!fits) {
            throw new IllegalArgumentException("pair " + i + ", input: expected " + format.shape() + " of "
                    + inputs[0].dtype() + " and the B of the first, S at most " + MOST_TOKENS + ", B h at most "
                    + Integer.MAX_VALUE + ", d a multiple of " + WORD_BYTES + " bytes, got " + Checks.describe(input));
        }
        Checks.aligned("input", input);
    }

    private static void transposedOutput(Tensor input, Tensor output, int i, int batch) {
        long moved = Math.min(
                VECTOR_BYTES, Long.lowestOneBit(input.size(3) * input.dtype().byteSize()));
        boolean fits = output.rank() == 4
                && output.dtype() == input.dtype()
                && output.size(0) == input.size(batch)
                && output.size(1) == input.size(2)
                && output.size(2) == input.size(1 - batch)
                && output.size(3) >= input.size(3)
                && (moved == 0 || output.size(3) * output.dtype().byteSize() % moved == 0);
        if (!fits) {
            throw new IllegalArgumentException(
                    "pair " + i + ", output: expected " + input.dtype() + "[" + input.size(batch)
                            + ", " + input.size(2) + ", " + input.size(1 - batch) + ", at least " + input.size(3)
                            + " and a multiple of " + moved + " bytes], got " + Checks.describe(output));
        }
        Checks.aligned("output", output);
        Checks.writable("output", output);
    }

    static void pad(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        Padding.checkNumbers(inputs, outputs, stream);
        for (int i = 0; i < inputs.length; i++) {
            Checks.on(stream, "input", inputs[i]);
            Checks.on(stream, "output", outputs[i]);
            padded(inputs[i], outputs[i], i);
        }
        Padding.checkApart(inputs, outputs);
    }

    private static void padded(Tensor input, Tensor output, int i) {
        Checks.withCode(i, "input", input);
        if (input.rank() != 2) {
            throw new IllegalArgumentException(
                    "pair " + i + ", input: expected a matrix, got " + Checks.describe(input));
        }
        boolean fits = output.rank() == 2
                && output.dtype() == input.dtype()
                && output.size(0) == input.size(0)
                && output.size(1) >= input.size(1);
        boolean wider = fits && output.size(1) > input.size(1);
        long row = fits ? output.size(1) * output.dtype().byteSize() : 0;
        if (!fits || (wider && (row % WORD_BYTES != 0 || row >= 1L << 32))) {
            throw new IllegalArgumentException("pair " + i + ", output: expected " + input.dtype() + "[" + input.size(0)
                    + ", at least " + input.size(1) + " and, if more, a multiple of " + WORD_BYTES
                    + " bytes below 4 GiB], got " + Checks.describe(output));
        }
        if (wider) {
            Checks.aligned("output", output);
        }
        Checks.writable("output", output);
    }
}
