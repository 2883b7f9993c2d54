package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Columns;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.SharedInput;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Attention of one stream over another with its norm and projections: {@code y = attention(norm(x) Wq^T + bq, m Wk^T + bk, m Wv^T + bv)
 * Wo^T + bo}, where m is the tensor of a {@link SharedInput}, such as an encoder's output; without bias there are no b.
 *
 * <p>The pass's sequences name both sides: {@code pass.sequences(decoderSequences.withKeys(encoderSequences))}.
 *
 * <p>Parameters: {@code norm}; {@code query} [h d, H]; {@code key_value} [2 g d, M], the rows of Wk and then those of Wv; {@code
 * projection} [H, h d]; with {@link AttentionConfig#qkNorm} {@code q_norm} and {@code k_norm} [d].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention} with
 * {@code attention_type="cross"}.
 */
public final class CrossAttention extends AttentionLayer {
    private final CrossAttentionBranch attention;

    /**
     * Declares the parameters in {@code plan}.
     *
     * @param memory holds m, from which keys and values are computed
     */
    public CrossAttention(CrossAttentionConfig config, SharedInput memory, ModelPlan plan) {
        Checks.given("config", config, "memory", memory, "plan", plan);
        this(
                NormLayer.of(config.norm(), plan.child("norm").forTokenParts()),
                new CrossAttentionBranch(config, memory, plan),
                plan);
    }

    private CrossAttention(NormLayer norm, CrossAttentionBranch attention, ModelPlan plan) {
        super(plan.name(), norm, attention, attention.query);
        this.attention = attention;
    }

    /** Returns the product that computes queries. */
    Linear query() {
        return attention.query;
    }

    /**
     * {@code y = attention(x Wq^T + bq, m Wk^T + bk, m Wv^T + bv) Wo^T + bo}, where m is the tensor of a {@link SharedInput}.
     */
    private static final class CrossAttentionBranch extends HeadsBranch {
        private static final class Heads extends SavedContext {
            private final Operand x = new Operand("the input");
            private final SavedTensor memory = new SavedTensor("the other stream's output");
            private final Operand memoryInput = new Operand("the other stream's output");
            private final Operand attended = new Operand("the heads' output");
            private @Nullable RotaryEmbedding rotary;
            private @Nullable Sequences sequences;
        }

        /** Of this rank's heads. */
        private final AttentionConfig config;

        private final SharedInput memory;
        private final long memoryColumns;
        private final Linear query;
        /** Keys and values by one product, as in TE: in eight bits they share a scale. */
        private final Linear keyValue;

        private final QkTransform querySide;
        private final QkTransform keySide;
        private final DotProductAttention attention;
        private final Linear projection;
        private final ContextParallel ranks;
        /** Of query and output, and of their gradients. */
        private final HeadAllToAll queryExchange;
        /** Of key and value, and of their gradients. */
        private final HeadAllToAll keyExchange;

        private final ContextPool<Heads> saved = new ContextPool<>(this, Heads::new);

        CrossAttentionBranch(CrossAttentionConfig cross, SharedInput memory, ModelPlan plan) {
            super(plan.name());
            AttentionConfig whole = cross.attention();
            config = whole.ofRank(plan);
            ranks = plan.contextParallel();
            if (ranks.gathersKeys() || ranks.passesKeysOn()) {
                throw new IllegalArgumentException("plan: " + plan.name()
                        + " expected context parallelism that exchanges heads, for only keys of self-attention can "
                        + (ranks.gathersKeys() ? "be gathered, got " : "travel round a ring, got ") + ranks);
            }
            this.memory = Checks.given("memory", memory);
            long hidden = cross.hidden();
            memoryColumns = cross.memoryColumns();
            Bias bias = cross.bias();
            Initializer initializer = cross.initializer();
            long width = (long) whole.heads() * whole.headDim();
            long keyWidth = (long) whole.keyHeads() * whole.headDim();
            query = Linear.ofSections(hidden, Linear.UNNAMED, List.of(width), bias, initializer, plan.child("query"));
            keyValue = Linear.ofSections(
                    memoryColumns,
                    List.of("key", "value"),
                    List.of(keyWidth, keyWidth),
                    bias,
                    initializer,
                    plan.child("key_value"));
            QkNorm norm = config.qkNorm();
            int headDim = config.headDim();
            querySide = new QkTransform(config.heads(), headDim, norm, this, plan.child("q_norm"));
            keySide = new QkTransform(config.keyHeads(), headDim, norm, this, plan.child("k_norm"));
            attention = new DotProductAttention(plan.name(), HeadNorm.behind(config), plan);
            projection = Linear.ofRows(width, hidden, bias, initializer, plan.child("projection"));
            queryExchange = HeadAllToAll.of(plan, config.headDim(), config.heads());
            keyExchange = HeadAllToAll.of(plan, config.headDim(), config.keyHeads(), config.keyHeads());
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
            Sequences sequences = pass.sequences();
            Tensor m = memory.tensor(pass);
            RotaryEmbedding present = rotary();
            checkCall(x, m, pass);
            Scope kept = pass.kept();
            Scope projectedIn = queryExchange.isNeeded() ? pass.temporary() : kept;
            Tensor ownQ = projectedIn.tensor(x.dtype(), productRows(x), query.outputColumns(x.size(1)));
            Tensor ownKeyValue = pass.temporary().tensor(x.dtype(), productRows(m), keyValue.outputColumns(m.size(1)));
            Heads record = saved.take();
            query.product(x, record.x, ownQ, pass);
            keyValue.product(m, record.memoryInput, ownKeyValue, pass);
            Tensor q = queryExchange.toHeads(ownQ, sequences.tokens(), kept, pass);
            Tensor both = keyExchange.toHeads(ownKeyValue, sequences.keys().tokens(), pass.temporary(), pass);
            long width = keyColumns();
            Tensor k = kept.tensor(x.dtype(), both.size(0), width);
            Tensor v = kept.like(k);
            Columns.copyColumns(both, 0, k, 0, width, pass.stream());
            Columns.copyColumns(both, width, v, 0, width, pass.stream());
            Tensor heads = attention.forward(
                    querySide.forward(shaped(kept, q, config.heads(), sequences), present, sequences.queries(), pass),
                    keySide.forward(
                            shaped(kept, k, config.keyHeads(), sequences.keys()), present, sequences.keys(), pass),
                    shaped(kept, v, config.keyHeads(), sequences.keys()),
                    pass);
            Tensor attended = queryExchange.toTokens(kept.view(heads, 0, q.size(0), q.size(1)), kept, pass);
            projection.product(attended, record.attended, y, pass);
            record.memory.set(m);
            record.rotary = present;
            record.sequences = sequences;
            saved.keep(record, pass);
        }

        /** Checks what forward reads beside its input's columns. */
        private void checkCall(Tensor x, Tensor m, Pass pass) {
            Sequences sequences = pass.sequences();
            Checks.matrix(pass.stream(), "memory", m, x.dtype(), memoryColumns);
            keyValue.checkInput(m);
            if (m.size(0) == 0) {
                throw new IllegalArgumentException("memory: expected at least one token, got " + Checks.describe(m));
            }
            LinearSplit split = query.sites().split();
            split.checkDivides(ranks.count(sequences.tokens()), sequences.queries());
            split.checkDivides(ranks.count(sequences.keys().tokens()), sequences.keys());
            queryExchange.checkTokens("x", x, productRows(x), sequences);
            keyExchange.checkTokens("memory", m, productRows(m), sequences.keys());
            RotaryEmbedding present = rotary();
            if (present != null) {
                present.checkSequences(sequences.queries(), pass.stream());
                present.checkSequences(sequences.keys(), pass.stream());
            }
        }

        /** Returns the rows of products of which {@code part} is read or written if ranks split tokens. */
        private long productRows(Tensor part) {
            return query.sites().split().productRows(part.size(0));
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            Heads record = saved.pop(pass);
            Tensor m = record.memory.get();
            Sequences sequences = Checks.given("sequences", record.sequences);
            projection.parameterGradients(dy, record.attended, pass);
            Scope temporary = pass.temporary();
            Tensor dprojected = temporary.tensor(
                    dy.dtype(), productRows(dy), projection.weight().shape().size(1));
            projection.products().inputGradient(record.attended, dprojected, pass);
            Tensor dattended = queryExchange.toHeads(dprojected, sequences.tokens(), temporary, pass);
            long width = keyColumns();
            Tensor dq = temporary.like(dattended);
            Tensor dk = temporary.tensor(m.dtype(), sequences.keys().tokens(), width);
            Tensor dv = temporary.like(dk);
            Tensor dqHeads = shaped(temporary, dq, config.heads(), sequences);
            Tensor dkHeads = shaped(temporary, dk, config.keyHeads(), sequences.keys());
            attention.backward(
                    shaped(temporary, dattended, config.heads(), sequences),
                    dqHeads,
                    dkHeads,
                    shaped(temporary, dv, config.keyHeads(), sequences.keys()),
                    pass);
            dkHeads = keySide.backward(dkHeads, record.rotary, sequences.keys(), pass);
            dqHeads = querySide.backward(dqHeads, record.rotary, sequences.queries(), pass);
            dk = temporary.view(dkHeads, 0, dk.size(0), dk.size(1));
            dq = queryExchange.toTokens(temporary.view(dqHeads, 0, dq.size(0), dq.size(1)), temporary, pass);
            query.parameterGradients(dq, record.x, pass);
            Tensor both = temporary.tensor(dk.dtype(), dk.size(0), 2 * width);
            Columns.copyColumns(dk, 0, both, 0, width, pass.stream());
            Columns.copyColumns(dv, 0, both, width, width, pass.stream());
            Tensor dkeyValue = keyExchange.toTokens(both, temporary, pass);
            keyValue.parameterGradients(dkeyValue, record.memoryInput, pass);
            pass.calls().gradientsWritten();
            if (record.x.learns()) {
                query.products().inputGradient(record.x, dx, pass);
            }
            if (m.requiresGradient()) {
                Tensor dm = temporary.like(m);
                keyValue.products().inputGradient(record.memoryInput, dm, pass);
                memory.add(dm, pass);
            }
        }

        /** Returns the columns of this rank's keys, and of its values. */
        private long keyColumns() {
            return (long) config.keyHeads() * config.headDim();
        }

        private Tensor shaped(Scope scope, Tensor matrix, int heads, Sequences side) {
            return AttentionInputs.shaped(scope, matrix, 0, heads, config.headDim(), side);
        }

        /** True also if every parameter is frozen: the other stream may require gradients. */
        @Override
        public boolean requiresGradient() {
            return true;
        }

        @Override
        public void checkInput(Tensor x) {
            query.checkInput(x);
        }

        @Override
        public String summary() {
            return config.summary().with("memoryColumns", memoryColumns).toString();
        }

        @Override
        public List<Layer> inside() {
            return List.of(query, keyValue, projection);
        }

        @Override
        protected String explanation(Tensor x, Pass pass) {
            String sides = querySide.explain(rotary());
            String moves = queryExchange.isNeeded() ? "\n" + name() + ": " + queryExchange.explain() : "";
            Tensor m = memory.latest(pass);
            String ofMemory = "";
            if (m != null) {
                checkCall(x, m, pass);
                ofMemory = "\n" + keyValue.explainInside(m, pass);
            }
            return query.explainInside(x, pass) + ofMemory + moves
                    + (sides.isEmpty() ? "" : "\n" + name() + ": " + sides) + "\n" + attention.explain(x.dtype(), pass)
                    + "\n" + projection.explainInside(x, pass);
        }
    }
}
