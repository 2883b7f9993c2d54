package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.RingSequences;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.layer.AttentionLayer.HeadsBranch;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = attention(rotate(x Wqkv^T + bqkv)) Wo^T + bo}. With as many key heads as query heads all three stay in the product's output
 * buffer; with fewer, or with norms of heads, rotation splits them into separate tensors.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionBranch extends HeadsBranch {
    private static final class Heads extends SavedContext {
        private final Operand x = new Operand("the input");
        private final Operand attended = new Operand("the heads' output");
        private @Nullable RotaryEmbedding rotary;
        private @Nullable Sequences sequences;
        /** The recipe's state if product, attention and projection exchange eight bits, else null. */
        private @Nullable Quantizers quantized;
    }

    /** Of this rank's heads. */
    private final AttentionConfig config;

    final Linear qkv;
    private final DotProductAttention attention;
    /** Null if query, key and value stay in one buffer. */
    private final @Nullable UnpackedQkv separate;

    private final Linear projection;
    /** Of query, key and value, and of their gradients. */
    private final HeadAllToAll exchange;

    private final HeadAllToAll attendedExchange;
    private final KvAllGather gather;
    private final ContextParallel ranks;
    /** Null without ring attention. */
    private final @Nullable RingAttention ring;

    private final ContextPool<Heads> saved = new ContextPool<>(this, Heads::new);

    AttentionBranch(
            long hidden,
            AttentionConfig config,
            Bias bias,
            Bias projectionBias,
            Initializer initializer,
            ModelPlan plan) {
        super(plan.name());
        this.config = config.ofRank(plan);
        long width = (long) config.heads() * config.headDim();
        long keyWidth = (long) config.keyHeads() * config.headDim();
        // The product of query, key and value stands under "qkv" beside the norm before it, as in TE.
        qkv = Linear.ofSections(
                hidden,
                List.of("query", "key", "value"),
                List.of(width, keyWidth, keyWidth),
                bias,
                initializer,
                plan.child("qkv").child("linear"));
        gather = KvAllGather.of(config, plan);
        attention = new DotProductAttention(plan.name(), HeadNorm.behind(gather.masked(this.config)), plan);
        ranks = plan.contextParallel();
        ring = RingAttention.of(this.config, plan);
        separate = UnpackedQkv.isFor(config, gather, ring)
                ? new UnpackedQkv(attention, this.config, gather, ring, this, plan)
                : null;
        projection = Linear.ofRows(width, hidden, projectionBias, initializer, plan.child("projection"));
        int heads = this.config.heads();
        int keyHeads = this.config.keyHeads();
        exchange = HeadAllToAll.of(plan, config.headDim(), heads, keyHeads, keyHeads);
        attendedExchange = HeadAllToAll.of(plan, config.headDim(), heads);
    }

    @Override
    Linear projection() {
        return projection;
    }

    @Override
    AttentionConfig config() {
        return config;
    }

    @Override
    DotProductAttention attention() {
        return attention;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Stream stream = pass.stream();
        long rows = qkv.sites().split().productRows(x.size(0));
        RingAttention passing = ring;
        RingSequences cut = passing == null ? null : cut(passing, rows, pass);
        Sequences sequences = cut == null ? sequences(x, rows, pass) : cut.local();
        RotaryEmbedding present = rotary();
        if (present != null) {
            present.checkSequences(sequences, stream);
        }
        Heads heads = saved.take();
        Scope keptIn = pass.isSaving() ? pass.kept() : null;
        qkv.input().finish(x, heads.x, keptIn, pass);
        Quantizers quantized = handsOver(x.dtype(), rows, sequences, pass);
        heads.quantized = quantized;
        heads.rotary = present;
        heads.sequences = sequences;
        if (quantized != null) {
            QuantizedTensor attended = attendQuantized(x.dtype(), rows, heads, quantized, pass);
            projection.input().finish(attended, quantized, heads.attended, keptIn, pass);
            projection.products().product(heads.attended, y, pass);
            saved.keep(heads, pass);
            return;
        }
        // Once split, the buffer is not read again.
        Scope attendedFrom = separate == null ? pass.kept() : pass.temporary();
        Scope projectedIn = exchange.isNeeded() ? pass.temporary() : attendedFrom;
        Tensor projected = projectedIn.tensor(x.dtype(), rows, qkv.outputColumns(x.size(1)));
        qkv.products().product(heads.x, projected, pass);
        Tensor own = exchange.toHeads(projected, sequences.tokens(), attendedFrom, pass);
        Tensor attended = attendedExchange.toTokens(
                separate == null
                        ? attendPacked(own, present, sequences, pass)
                        : separate.forward(own, present, sequences, cut, pass),
                pass.kept(),
                pass);
        projection.product(attended, heads.attended, y, pass);
        saved.keep(heads, pass);
    }

    /** Returns the recipe's state where attention gives the projection eight bits and takes the gradient in eight bits, or null. */
    private @Nullable Quantizers handsOver(DType dtype, long rows, Sequences sequences, Pass pass) {
        boolean isAdapted =
                qkv.sites().adapter() != null || projection.sites().adapter() != null; // reads the tensors themselves
        if (isAdapted || separate != null || exchange.isNeeded() || rows == 0 || rows % QuantizedCopies.STEP != 0) {
            return null;
        }
        Quantizers present = attention.quantizers(dtype, sequences, pass);
        return present != null
                        && qkv.sites().quantizers(pass) == present
                        && projection.sites().quantizers(pass) == present
                ? present
                : null;
    }

    /** Returns whether the product of query, key and value has eight bits on both its sides. */
    private static boolean reachesProduct(Quantizers present, @Nullable RotaryEmbedding rotated) {
        return present.recipe().attention() == AttentionPrecision.FP8_MHA && rotated == null;
    }

    /** Enqueues the product, the rotation and attention; returns attention's output, [T, h d]. */
    private QuantizedTensor attendQuantized(DType dtype, long rows, Heads heads, Quantizers present, Pass pass) {
        Sequences sequences = Checks.given("sequences", heads.sequences);
        RotaryEmbedding rotation = heads.rotary;
        if (reachesProduct(present, rotation)) {
            QuantizedTensor copy = attention.emptyQkv(rows, present, pass);
            qkv.products().product(heads.x, copy, present, pass);
            return attention.forwardPacked(copy, sequences, present, pass);
        }
        Tensor projected =
                pass.temporary().tensor(dtype, rows, qkv.weight().shape().size(0));
        qkv.products().product(heads.x, projected, pass);
        if (rotation != null) {
            rotation.rotatePacked(projected, sequences, pass.stream());
        }
        return attention.forwardPacked(attention.cast(projected, present, pass), sequences, present, pass);
    }

    private Sequences sequences(Tensor x, long rows, Pass pass) {
        Sequences sequences =
                gather.isNeeded() ? gather.sequences(pass) : pass.sequences().queries();
        qkv.sites()
                .split()
                .checkDivides(gather.isNeeded() ? sequences.tokens() : ranks.count(sequences.tokens()), sequences);
        if (gather.isNeeded()) {
            gather.checkTokens("x", rows, sequences, pass);
        } else {
            exchange.checkTokens("x", x, rows, sequences);
        }
        return sequences;
    }

    private RingSequences cut(RingAttention passing, long rows, Pass pass) {
        Sequences all = pass.sequences().queries();
        qkv.sites().split().checkDivides(ranks.count(all.tokens()), all);
        return passing.cut("x", rows, pass);
    }

    private Tensor attendPacked(Tensor projected, @Nullable RotaryEmbedding present, Sequences sequences, Pass pass) {
        if (present != null) {
            present.rotatePacked(projected, sequences, pass.stream());
        }
        return attention.forwardPacked(projected, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Heads heads = saved.pop(pass);
        LinearProducts last = projection.products();
        projection.parameterGradients(dy, heads.attended, pass);
        if (!learnsBelow() && !heads.x.learns()) {
            discard(pass);
            return;
        }
        long rows = projection.sites().split().productRows(dy.size(0));
        Quantizers quantized = heads.quantized;
        if (quantized != null) {
            QuantizedTensor dattended = attention.emptyGradient(rows, quantized, pass);
            last.inputGradient(dattended, quantized, pass);
            quantizedGradient(dattended, dy.dtype(), heads, quantized, pass);
            parameterAndInputGradients(heads, dx, pass);
            return;
        }
        Tensor dprojected = pass.temporary()
                .tensor(dy.dtype(), rows, projection.weight().shape().size(1));
        last.inputGradient(heads.attended, dprojected, pass);
        Tensor dqkv = attentionGradient(dprojected, heads.rotary, Checks.given("sequences", heads.sequences), pass);
        qkv.outputGradient().finish(dqkv, heads.x, pass);
        parameterAndInputGradients(heads, dx, pass);
    }

    private void parameterAndInputGradients(Heads heads, Tensor dx, Pass pass) {
        qkv.products().parameterGradients(heads.x, pass);
        pass.calls().gradientsWritten();
        if (heads.x.learns()) {
            qkv.products().inputGradient(heads.x, dx, pass);
        }
    }

    /** Prepares the gradient of the product of query, key and value from that of attention's output, both in eight bits. */
    private void quantizedGradient(QuantizedTensor dattended, DType dtype, Heads heads, Quantizers present, Pass pass) {
        QuantizedTensor copy = attention.backwardPacked(dattended, pass);
        RotaryEmbedding rotated = heads.rotary;
        if (reachesProduct(present, rotated)) {
            qkv.outputGradient().finish(copy, dtype, present, pass);
            return;
        }
        Tensor dqkv = pass.temporary().tensor(dtype, copy.rows(), copy.columns());
        QuantizedHeads.dequantize(copy, dqkv, pass);
        if (rotated != null) {
            rotated.rotatePackedBack(dqkv, Checks.given("sequences", heads.sequences), pass.stream());
        }
        qkv.outputGradient().finish(dqkv, heads.x, pass);
    }

    /** Enqueues the gradient of the product of query, key and value from {@code dattended}, that of the heads' output. */
    private Tensor attentionGradient(
            Tensor dattended, @Nullable RotaryEmbedding rotated, Sequences sequences, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor down = attendedExchange.toHeads(dattended, sequences.tokens(), temporary, pass);
        long keyWidth = (long) config.keyHeads() * config.headDim();
        Tensor dqkv = temporary.tensor(down.dtype(), down.size(0), down.size(1) + 2 * keyWidth);
        if (separate == null) {
            attention.backwardPacked(down, dqkv, pass);
            if (rotated != null) {
                rotated.rotatePackedBack(dqkv, sequences, pass.stream());
            }
        } else {
            separate.backward(down, dqkv, rotated, sequences, pass);
        }
        return exchange.toTokens(dqkv, temporary, pass);
    }

    /** Returns whether a parameter below attention is trained. */
    private boolean learnsBelow() {
        return qkv.requiresGradient()
                || attention.requiresGradient()
                || (separate != null && separate.requiresGradient());
    }

    private void discard(Pass pass) {
        if (separate == null) {
            attention.discard(pass);
        } else {
            separate.discard(pass);
        }
    }

    @Override
    public boolean requiresGradient() {
        return learnsBelow() || projection.requiresGradient();
    }

    @Override
    public void checkInput(Tensor x) {
        qkv.checkInput(x);
    }

    /** Returns the lines about what happens between the product and attention, or nothing. */
    private String moves() {
        String line = "\n" + name() + ": ";
        String exchanged = exchange.isNeeded() ? line + exchange.explain() : "";
        if (separate != null) {
            return exchanged + line + separate.explain(rotary());
        }
        return rotary() == null ? exchanged : exchanged + line + "rotation in place by ops_rotary_packed";
    }

    @Override
    public String summary() {
        return config.summary().toString();
    }

    @Override
    public List<Layer> inside() {
        return List.of(qkv, projection);
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        Sequences sequences = explained(x, pass);
        return qkv.explainInside(x, pass)
                + moves()
                + "\n" + attention.explain(x.dtype(), sequences, pass) + explainQuantized(x, sequences, pass) + "\n"
                + projection.explainInside(x, pass);
    }

    /** Returns the sequences of a call over {@code x}, once they fit it and what rotates it. */
    private Sequences explained(Tensor x, Pass pass) {
        LinearSplit split = qkv.sites().split();
        RingAttention passing = ring;
        if (passing != null) {
            checked(cut(passing, split.productRows(x.size(0)), pass).local(), pass);
            return pass.sequences().queries();
        }
        return gather.attended(checked(sequences(x, split.productRows(x.size(0)), pass), pass));
    }

    private Sequences checked(Sequences sequences, Pass pass) {
        RotaryEmbedding present = rotary();
        if (present != null) {
            present.checkSequences(sequences, pass.stream());
        }
        return AttentionInputs.checked(sequences);
    }

    /** Describes the casts around attention, if it computes in eight bits. */
    private String explainQuantized(Tensor x, Sequences sequences, Pass pass) {
        Quantizers present = attention.quantizers(x.dtype(), sequences, pass);
        if (present == null) {
            return "";
        }
        if (handsOver(x.dtype(), sequences.tokens(), sequences, pass) == null) {
            return ", with te_quantize_v2 before it and te_dequantize behind";
        }
        return reachesProduct(present, rotary())
                ? "; te_cublas_gemm_v2 writes what it reads, forward and backward, and what it writes the products read"
                : "; te_quantize_v2 casts what it reads, te_cublas_gemm_v2 writes the gradient of its output, the projection"
                        + " reads its output, and te_dequantize gives the gradients that it writes";
    }
}
