package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizer;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Cast;
import dev.chagres.te.QkvLayout;

/**
 * Attention over tensors in eight bits, and the casts to them and from them.
 *
 * <p>Threading: the device's thread.
 */
record QuantizedHeads(QuantizedAttention choice, AttentionInputs inputs, AttentionCalls calls) {
    /** Enqueues the cast of query, key and value side by side: [T, 3 h d], kept. */
    QuantizedTensor cast(Tensor qkv, Quantizers present, Pass pass) {
        return cast(qkv, qkv.size(0), qkv.size(1), choice.sites().qkv, present, pass.kept(), pass);
    }

    private static QuantizedTensor cast(
            Tensor x, long rows, long columns, QuantizerSite site, Quantizers present, Scope memory, Pass pass) {
        Quantizer quantizer = present.at(site);
        QuantizedTensor copy = empty(quantizer, rows, columns, memory, pass);
        Tensor matrix = x.rank() == 2 ? x : pass.temporary().view(x, 0, rows, columns);
        quantizer.cast(matrix, copy, pass.recording(), pass.temporary(), pass.stream());
        return copy;
    }

    /** Allocates a matrix for a kernel that casts its output; its scale inverse is that of the step. */
    static QuantizedTensor empty(Quantizer quantizer, long rows, long columns, Scope memory, Pass pass) {
        return quantizer
                .empty(memory, rows, columns)
                .rowwise(
                        memory.tensor(quantizer.dtype(), rows, columns),
                        quantizer.tensorScale(pass.recording()).scaleInverse());
    }

    /** Allocates a matrix for a product that casts its output. */
    static QuantizedTensor emptyOfProduct(Quantizer quantizer, long rows, long columns, Scope memory, Pass pass) {
        QuantizedTensor copy = empty(quantizer, rows, columns, memory, pass);
        quantizer.setScale(copy, pass.recording());
        return copy;
    }

    /** Enqueues attention over {@code qkv} [T, 3 h d]; returns the output [T, h d], kept. */
    QuantizedTensor forwardPacked(
            QuantizedTensor qkv, Sequences sequences, Quantizers present, SavedAttention record, Pass pass) {
        Scope kept = pass.kept();
        long width = inputs.width();
        Tensor data = data(qkv);
        QuantizedTensor output = empty(present.at(choice.sites().output), qkv.rows(), width, kept, pass);
        calls.forward(
                QkvLayout.packed(sequences.format()),
                inputs.shaped(kept, data, 0, sequences),
                inputs.shaped(kept, data, width, sequences),
                inputs.shaped(kept, data, 2 * width, sequences),
                inputs.shaped(kept, data(output), 0, sequences),
                sequences,
                choice.sites().scales(present),
                record,
                pass);
        record.qkv.set(data);
        note(record, output, present, pass);
        return output;
    }

    /** Enqueues the casts of query, key and value, attention over them, and {@code output}, like q. */
    void forward(
            Tensor q,
            Tensor k,
            Tensor v,
            Tensor output,
            Sequences sequences,
            Quantizers present,
            SavedAttention record,
            Pass pass) {
        Scope kept = pass.kept();
        long rows = rows(q);
        QuantizerSite site = choice.sites().qkv;
        QuantizedTensor copy = empty(present.at(choice.sites().output), rows, q.count() / rows, kept, pass);
        calls.forward(
                QkvLayout.separate(sequences.format()),
                shaped(kept, cast(q, rows, q.count() / rows, site, present, kept, pass), q),
                shaped(kept, cast(k, rows(k), k.count() / rows(k), site, present, kept, pass), k),
                shaped(kept, cast(v, rows(v), v.count() / rows(v), site, present, kept, pass), v),
                shaped(kept, copy, output),
                sequences,
                choice.sites().scales(present),
                record,
                pass);
        note(record, copy, present, pass);
        dequantize(copy, output, pass);
    }

    /** Softmax weights have the same scale in each step, so that their amax is not recorded. */
    private void note(SavedAttention record, QuantizedTensor output, Quantizers present, Pass pass) {
        QuantizedCopies.raiseAmax(present.at(choice.sites().output), pass);
        record.outputCopy.set(data(output));
        record.quantizers = present;
        record.scalesVersion = present.scalesVersion();
    }

    /** Enqueues the cast of the gradient of the output, [T, h d]. */
    QuantizedTensor castGradient(Tensor dO, SavedAttention record, Pass pass) {
        Quantizers present = quantizers(record);
        long rows = rows(dO);
        return cast(dO, rows, dO.count() / rows, choice.sites().outputGradient, present, pass.temporary(), pass);
    }

    /** Enqueues the gradients of {@link #forwardPacked}; returns that of the buffer, [T, 3 h d], temporary. */
    QuantizedTensor backwardPacked(QuantizedTensor dO, SavedAttention record, Pass pass) {
        Scope temporary = pass.temporary();
        long width = inputs.width();
        Sequences sequences = Checks.given("sequences", record.sequences);
        QuantizedTensor dqkv = emptyGradient(dO.rows(), 3 * width, record, pass);
        calls.backward(
                record,
                inputs.shaped(temporary, data(dO), 0, sequences),
                inputs.shaped(temporary, data(dqkv), 0, sequences),
                inputs.shaped(temporary, data(dqkv), width, sequences),
                inputs.shaped(temporary, data(dqkv), 2 * width, sequences),
                pass);
        raiseGradients(record, pass);
        return dqkv;
    }

    /** Enqueues the gradients of {@link #forward}. */
    void backward(SavedAttention record, Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor incoming = castGradient(dO, record, pass);
        QuantizedTensor query = emptyGradient(rows(dq), dq.count() / rows(dq), record, pass);
        QuantizedTensor key = emptyGradient(rows(dk), dk.count() / rows(dk), record, pass);
        QuantizedTensor value = emptyGradient(rows(dv), dv.count() / rows(dv), record, pass);
        calls.backward(
                record,
                shaped(temporary, incoming, dO),
                shaped(temporary, query, dq),
                shaped(temporary, key, dk),
                shaped(temporary, value, dv),
                pass);
        raiseGradients(record, pass);
        dequantize(query, dq, pass);
        dequantize(key, dk, pass);
        dequantize(value, dv, pass);
    }

    private void raiseGradients(SavedAttention record, Pass pass) {
        Quantizers present = quantizers(record);
        QuantizedCopies.raiseAmax(present.at(choice.sites().scoreGradient), pass);
        QuantizedCopies.raiseAmax(present.at(choice.sites().qkvGradient), pass);
    }

    private QuantizedTensor emptyGradient(long rows, long columns, SavedAttention record, Pass pass) {
        Quantizer quantizer = quantizers(record).at(choice.sites().qkvGradient);
        return empty(quantizer, rows, columns, pass.temporary(), pass);
    }

    /** If the pass calibrates: enqueues the casts of a forward call, only for their amaxes. */
    void recordForward(QkvLayout layout, Sequences sequences, Pass pass, Tensor output, Tensor... inputs) {
        Quantizers present = choice.calibrated(layout, output.dtype(), sequences, pass);
        if (present != null) {
            record(output, choice.sites().output, present, pass);
            for (Tensor input : inputs) {
                record(input, choice.sites().qkv, present, pass);
            }
        }
    }

    /** If the pass calibrates: enqueues the casts of a backward call, only for their amaxes. */
    void recordBackward(QkvLayout layout, Sequences sequences, Pass pass, Tensor dO, Tensor... gradients) {
        Quantizers present = choice.calibrated(layout, dO.dtype(), sequences, pass);
        if (present != null) {
            record(dO, choice.sites().outputGradient, present, pass);
            for (Tensor gradient : gradients) {
                record(gradient, choice.sites().qkvGradient, present, pass);
            }
        }
    }

    private static void record(Tensor x, QuantizerSite site, Quantizers present, Pass pass) {
        long rows = rows(x);
        var _ = cast(x, rows, x.count() / rows, site, present, pass.temporary(), pass);
    }

    /** Enqueues {@code y = x} in the type of y. */
    static void dequantize(QuantizedTensor x, Tensor y, Pass pass) {
        Tensor matrix = y.rank() == 2 ? y : pass.temporary().view(y, 0, x.rows(), x.columns());
        Cast.dequantize(x, matrix, pass.stream());
    }

    private static Quantizers quantizers(SavedAttention record) {
        return Checks.given("quantizers", record.quantizers);
    }

    private static Tensor data(QuantizedTensor copy) {
        return Checks.given("rowwise", copy.rowwise());
    }

    /** Returns the tokens of [T, heads, d] or [.., .., heads, d], or the rows of a matrix. */
    private static long rows(Tensor x) {
        return x.rank() == 4 ? x.size(0) * x.size(1) : x.size(0);
    }

    private static Tensor shaped(Scope scope, QuantizedTensor copy, Tensor model) {
        Tensor data = data(copy);
        return model.rank() == 3
                ? scope.view(data, 0, model.size(0), model.size(1), model.size(2))
                : scope.view(data, 0, model.size(0), model.size(1), model.size(2), model.size(3));
    }
}
