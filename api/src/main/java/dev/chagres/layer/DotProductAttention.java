package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.layer.SavedAttention.Form;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.LayerSummary;
import dev.chagres.pass.Named;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.Nullable;

/**
 * {@code o = dropout(softmax(scale q k^T + mask)) v} for each head, over {@link Pass#sequences()}.
 *
 * <p>Scores are {@code scale q k^T}; a bias may be added before the scale. What changes them comes in this order: soft cap {@code c tanh(s / c)},
 * ALiBi, bias, masks. The softmax may have one more term in its denominator ({@link SoftmaxType}). {@link dev.chagres.ops.AttentionScores} has
 * the formulas.
 *
 * <p>Shapes: q and o are [T, h, d] packed (THD), [B, S, h, d] (BSHD) or [S, B, h, d] (SBHD), k and v likewise with g heads and
 * the tokens of {@link Sequences#keys()}; or one buffer holds query, key and value of the same tokens, as [T, 3 h d] rows.
 * FLOAT32, BFLOAT16 or FLOAT16. The softmax is computed in FP32.
 *
 * <p>cuDNN's fused kernels compute BFLOAT16 and FLOAT16. Our own tiled kernels compute the cases that cuDNN does not support: FLOAT32,
 * padded batches of one token a sequence, and most changes of the scores before the softmax; and, as they are faster there, heads of at
 * most 32 columns without dropout whose scores are unchanged. A soft cap alone, over dense sequences of full length in 16 bits with query, key
 * and value apart, is computed by graphs of cuDNN's on a GPU. {@link dev.chagres.ops.Attention} says what they round. TE is asked which
 * changes of scores cuDNN supports: a bias and a softmax with an extra term for padded sequences, and ALiBi with standard slopes under a
 * causal mask. But for a soft cap the choice is the same on every provider.
 *
 * <p>Under a recipe whose {@link dev.chagres.recipe.Recipe#attention} says so, cuDNN's kernels compute in eight bits where they can, if
 * this object was made with a plan: query, key and value are cast, and output and gradients have the type of the query. {@link #explain}
 * says whether they do and why not.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h};
 * {@code ops_attention_forward}, {@code ops_attention_backward} in {@code ops.h}.
 */
public final class DotProductAttention implements Named {
    private final String name;
    private final AttentionConfig config;
    private final ScoreMods rules;
    /** Graphs of a soft cap. */
    final CappedAttention capped;

    private final AttentionCalls calls;
    private final AttentionInputs inputs;
    private final QuantizedAttention choice;
    private final QuantizedHeads quantized;
    private final ContextPool<SavedAttention> saved = new ContextPool<>(this, SavedAttention::new);

    /**
     * Makes attention as {@code config} says.
     *
     * @throws IllegalArgumentException when the config has norms of heads, or a softmax with learnable sinks
     */
    public DotProductAttention(AttentionConfig config) {
        this("attention", config, null);
    }

    /**
     * Makes attention as {@code config} says, and declares in {@code plan} the parameter of {@link SoftmaxType#LEARNABLE},
     * {@code softmax_offset} [h] in FLOAT32, which begins with 0.
     *
     * @throws IllegalArgumentException when the config has norms of heads
     */
    public DotProductAttention(AttentionConfig config, ModelPlan plan) {
        this(Checks.given("plan", plan).name().isEmpty() ? "attention" : plan.name(), config, plan);
    }

    DotProductAttention(String name, AttentionConfig config, @Nullable ModelPlan plan) {
        this.name = name;
        this.config = Checks.given("config", config);
        if (!config.qkNorm().isNone()) {
            throw new IllegalArgumentException("qkNorm: expected none, for " + name
                    + " takes query and key as they are, got " + config.qkNorm().kind()
                    + "; norm them before, or use MultiheadAttention");
        }
        if (plan == null && config.softmaxType() == SoftmaxType.LEARNABLE) {
            throw new IllegalArgumentException("plan: expected one, in which the sinks of the softmax are declared, got"
                    + " none; call new DotProductAttention(config, plan)");
        }
        rules = new ScoreMods(config, plan);
        AttentionProblems problems = new AttentionProblems(config);
        capped = new CappedAttention(config, rules);
        calls = new AttentionCalls(config, problems, rules, new FusedScoreMods(config, rules, problems), capped);
        inputs = new AttentionInputs(name, config);
        choice = new QuantizedAttention(config, rules, problems, plan);
        quantized = new QuantizedHeads(choice, inputs, calls);
    }

    /** Returns what is computed. */
    public AttentionConfig config() {
        return config;
    }

    /**
     * Adds linear biases to the scores of forward calls from now on.
     *
     * @throws IllegalArgumentException when it has slopes of another number of heads than all ranks have together
     */
    public void alibi(Alibi alibi) {
        rules.alibi(alibi);
    }

    /**
     * Adds a bias to the scores of forward calls from now on: the tensor that {@code biases} was given in the same pass, {@code [1 or B, 1
     * or h, S, S']} of the query's type, S at least the longest query sequence, S' at least the longest key sequence, each with the gap
     * behind it. Several attentions may read one bias. Backward adds to its gradient there, where it requires one.
     *
     * <p>If ranks split the heads, h is the number of heads of all ranks, and each rank passes the same bias. Each tensor-parallel rank
     * then has the gradient of all heads, summed over these ranks, and each context-parallel rank that of its own heads and 0 elsewhere.
     *
     * @throws IllegalArgumentException where context-parallel ranks attend with their own queries alone
     */
    public void bias(SharedInput biases) {
        rules.bias(biases);
    }

    /**
     * Adds a bias to the scores of forward calls from now on as {@link #bias} does, but before the scale, {@code s = scale (q_i . k_j +
     * bias)}: TE's {@code pre_scale_bias}. It replaces a bias that was set before.
     *
     * @throws IllegalArgumentException where context-parallel ranks attend with their own queries alone
     */
    public void preScaleBias(SharedInput biases) {
        rules.preScaleBias(biases);
    }

    /** Returns the learnable sinks of the softmax, FLOAT32 [h]; null where there are none. */
    public @Nullable Parameter sinks() {
        return rules.sinks;
    }

    /** Returns whether backward computes gradients other than those of query, key and value. */
    boolean requiresGradient() {
        return rules.requiresGradient();
    }

    /**
     * Enqueues attention over three tensors.
     *
     * @return o, like q
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the sequences end off the tokens
     */
    public Tensor forward(Tensor q, Tensor k, Tensor v, Pass pass) {
        return forward(q, k, v, begin(pass), pass);
    }

    /** Enqueues attention of the pass's queries over keys of the same tokens, even if its sequences name other keys. */
    Tensor forwardSelf(Tensor q, Tensor k, Tensor v, Pass pass) {
        return forward(q, k, v, begin(pass).queries(), pass);
    }

    /** Enqueues attention over the keys of {@code sequences}, which may differ from the pass's. */
    Tensor forward(Tensor q, Tensor k, Tensor v, Sequences sequences, Pass pass) {
        inputs.check(q, k, v, sequences, pass.stream());
        Tensor output = pass.kept().like(q);
        SavedAttention record = saved.take();
        record.form = Form.SEPARATE;
        QkvLayout layout = QkvLayout.separate(sequences.format());
        Quantizers present = choice.quantizers(layout, q.dtype(), sequences, pass);
        if (present == null) {
            record.quantizers = null;
            calls.forward(layout, q, k, v, output, sequences, null, record, pass);
            if (pass.isCalibrating()) {
                quantized.recordForward(layout, sequences, pass, output, q, k, v);
            }
        } else {
            quantized.forward(q, k, v, output, sequences, present, record, pass);
            record.output.set(output);
        }
        saved.keep(record, pass);
        return output;
    }

    /**
     * Enqueues attention over one buffer.
     *
     * @param qkv [T, 3 h d]: query, key and value of each token side by side
     * @return o, [T, h d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the sequences end off the tokens, or key
     *     and value have other heads than the query
     */
    public Tensor forwardPacked(Tensor qkv, Pass pass) {
        Sequences sequences = begin(pass).queries();
        inputs.checkPacked(qkv, sequences, pass.stream());
        long width = inputs.width();
        Scope kept = pass.kept();
        Tensor output = kept.tensor(qkv.dtype(), qkv.size(0), width);
        QkvLayout layout = QkvLayout.packed(sequences.format());
        Quantizers present = choice.quantizers(layout, qkv.dtype(), sequences, pass);
        if (present != null) {
            SavedAttention record = saved.take();
            record.form = Form.PACKED;
            QuantizedTensor copy = quantized.cast(qkv, present, pass);
            QuantizedHeads.dequantize(quantized.forwardPacked(copy, sequences, present, record, pass), output, pass);
            record.output.set(output);
            saved.keep(record, pass);
            return output;
        }
        Tensor q = inputs.shaped(kept, qkv, 0, sequences);
        Tensor k = inputs.shaped(kept, qkv, width, sequences);
        Tensor v = inputs.shaped(kept, qkv, 2 * width, sequences);
        Tensor o = inputs.shaped(kept, output, 0, sequences);
        SavedAttention record = saved.take();
        record.form = Form.PACKED;
        record.quantizers = null;
        calls.forward(layout, q, k, v, o, sequences, null, record, pass);
        if (pass.isCalibrating()) {
            quantized.recordForward(layout, sequences, pass, output, qkv);
        }
        record.qkv.set(qkv);
        saved.keep(record, pass);
        return output;
    }

    /** Returns the recipe's state where attention over one buffer of this type is computed in eight bits, or null. */
    @Nullable
    Quantizers quantizers(DType dtype, Sequences sequences, Pass pass) {
        return choice.quantizers(QkvLayout.packed(sequences.format()), dtype, sequences, pass);
    }

    /** Enqueues the cast of query, key and value side by side: [T, 3 h d], kept. */
    QuantizedTensor cast(Tensor qkv, Quantizers present, Pass pass) {
        return quantized.cast(qkv, present, pass);
    }

    /** Hands out memory for a product that casts query, key and value itself: [rows, 3 h d], kept. */
    QuantizedTensor emptyQkv(long rows, Quantizers present, Pass pass) {
        return QuantizedHeads.emptyOfProduct(
                present.at(choice.sites().qkv), rows, 3 * inputs.width(), pass.kept(), pass);
    }

    /** Enqueues attention over one buffer in eight bits; returns the output [T, h d] in eight bits, kept. */
    QuantizedTensor forwardPacked(QuantizedTensor qkv, Sequences sequences, Quantizers present, Pass pass) {
        AttentionInputs.checked(sequences);
        SavedAttention record = saved.take();
        record.form = Form.PACKED;
        QuantizedTensor output = quantized.forwardPacked(qkv, sequences, present, record, pass);
        saved.keep(record, pass);
        return output;
    }

    /** Hands out memory for a product that casts the gradient of the output itself, [rows, h d]. */
    QuantizedTensor emptyGradient(long rows, Quantizers present, Pass pass) {
        return QuantizedHeads.emptyOfProduct(
                present.at(choice.sites().outputGradient), rows, inputs.width(), pass.temporary(), pass);
    }

    /** Enqueues the gradient of {@link #forwardPacked(QuantizedTensor, Sequences, Quantizers, Pass)}, temporary. */
    QuantizedTensor backwardPacked(QuantizedTensor dO, Pass pass) {
        QuantizedTensor dqkv = quantized.backwardPacked(dO, current(Form.PACKED, pass), pass);
        saved.pop(pass);
        return dqkv;
    }

    private Sequences begin(Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        return AttentionInputs.checked(pass.sequences());
    }

    /**
     * Enqueues the gradients of {@link #forward}.
     *
     * @param dO gradient of the output, like it
     * @param dq receives the gradient of the query, like it; so {@code dk} and {@code dv}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or a gradient shares memory with another
     *     tensor
     * @throws IllegalStateException when the last forward call of the pass was another's
     */
    public void backward(Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        SavedAttention record = current(Form.SEPARATE, pass);
        AttentionInputs.checkGradients(record, dO, dq, dk, dv, pass.stream());
        if (record.quantizers == null) {
            runBackward(record, dO, dq, dk, dv, pass);
            if (pass.isCalibrating()) {
                Sequences sequences = Checks.given("sequences", record.sequences);
                quantized.recordBackward(QkvLayout.separate(sequences.format()), sequences, pass, dO, dq, dk, dv);
            }
        } else {
            quantized.backward(record, dO, dq, dk, dv, pass);
            saved.pop(pass);
        }
    }

    /**
     * Enqueues the gradient of {@link #forwardPacked}.
     *
     * @param dO gradient of the output: [T, h d]
     * @param dqkv receives the gradient of the buffer: [T, 3 h d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the gradient shares memory with another
     *     tensor
     * @throws IllegalStateException when the last forward call of the pass was another's
     */
    public void backwardPacked(Tensor dO, Tensor dqkv, Pass pass) {
        SavedAttention record = current(Form.PACKED, pass);
        inputs.checkPackedGradient(record, dO, dqkv, pass.stream());
        if (record.quantizers != null) {
            QuantizedTensor incoming = quantized.castGradient(dO, record, pass);
            QuantizedHeads.dequantize(quantized.backwardPacked(incoming, record, pass), dqkv, pass);
            saved.pop(pass);
            return;
        }
        long width = inputs.width();
        Sequences sequences = Checks.given("sequences", record.sequences);
        Scope temporary = pass.temporary();
        runBackward(
                record,
                inputs.shaped(temporary, dO, 0, sequences),
                inputs.shaped(temporary, dqkv, 0, sequences),
                inputs.shaped(temporary, dqkv, width, sequences),
                inputs.shaped(temporary, dqkv, 2 * width, sequences),
                pass);
        if (pass.isCalibrating()) {
            quantized.recordBackward(QkvLayout.packed(sequences.format()), sequences, pass, dO, dqkv);
        }
    }

    private void runBackward(SavedAttention record, Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        calls.backward(record, dO, dq, dk, dv, pass);
        saved.pop(pass);
    }

    /** Returns the record of the forward call to undo, after checking that it is the last call's and that its tensors are still valid. */
    private SavedAttention current(Form form, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        SavedAttention record = saved.peek(pass);
        if (record.form != form) {
            throw new IllegalArgumentException(name + ": the last forward call was " + record.form.forward
                    + ", whose gradient " + record.form.backward + " computes; got a call of " + form.backward);
        }
        record.check();
        return record;
    }

    @Override
    public String name() {
        return name;
    }

    /** Drops the tensors that the latest forward call saved, when no gradient of it is needed. */
    void discard(Pass pass) {
        saved.pop(pass);
    }

    /**
     * Returns which kernels compute inputs of this type over the pass's sequences, and why not the others.
     *
     * @throws IllegalArgumentException when forward would refuse the sequences, or the bias or mask of scores
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     */
    public String explain(DType dtype, Pass pass) {
        return explain(Checks.given("dtype", dtype), begin(pass), pass);
    }

    /** Returns the same over sequences that are the pass's, or those of its queries. */
    String explain(DType dtype, Sequences sequences, Pass pass) {
        rules.check(sequences, dtype, pass);
        return name + ": "
                + calls.explain(dtype, sequences, pass)
                + choice.explain(QkvLayout.separate(sequences.format()), dtype, sequences, pass);
    }

    @Override
    public String toString() {
        return LayerSummary.line(name, "DotProductAttention", config.summary().toString());
    }
}
