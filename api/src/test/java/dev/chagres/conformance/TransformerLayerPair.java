package dev.chagres.conformance;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.witness.RotaryWitness;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;

/** A transformer layer on the device and its witness, with the same weights. */
final class TransformerLayerPair implements AutoCloseable {
    enum Position {
        NONE,
        ROTARY
    }

    enum Residuals {
        PLAIN(0, 0),
        DROPOUT(0.2f, 0),
        DROP_PATH(0, 0.4f),
        DROPOUT_AND_DROP_PATH(0.2f, 0.4f);

        private final Dropout values;
        private final Dropout paths;

        Residuals(float values, float paths) {
            this.values = Dropout.of(values);
            this.paths = Dropout.of(paths);
        }
    }

    record Case(
            DType dtype,
            Kind kind,
            int hidden,
            int headDim,
            TokenRows tokens,
            Position position,
            Residuals residuals,
            Bias bias,
            int keyHeads,
            QkNorm qkNorm) {
        Case(
                DType dtype,
                Kind kind,
                int hidden,
                int headDim,
                TokenRows tokens,
                Position position,
                Residuals residuals,
                Bias bias) {
            this(dtype, kind, hidden, headDim, tokens, position, residuals, bias, 3, QkNorm.none());
        }

        Case(
                DType dtype,
                Kind kind,
                int hidden,
                int headDim,
                TokenRows tokens,
                Position position,
                Residuals residuals) {
            this(dtype, kind, hidden, headDim, tokens, position, residuals, Bias.PRESENT);
        }

        Case withKeyHeads(int newKeyHeads) {
            return new Case(dtype, kind, hidden, headDim, tokens, position, residuals, bias, newKeyHeads, qkNorm);
        }

        Case withQkNorm(QkNorm newQkNorm) {
            return new Case(dtype, kind, hidden, headDim, tokens, position, residuals, bias, keyHeads, newQkNorm);
        }

        TransformerLayerConfig config() {
            NormConfig norm = new NormConfig(kind, hidden, 1e-5f);
            AttentionConfig attention = AttentionConfig.of(3, headDim, AttentionMask.none())
                    .withKeyHeads(keyHeads)
                    .withQkNorm(qkNorm);
            return TransformerLayerConfig.encoder(hidden, attention)
                    .withNorm(norm)
                    .withMlp(MlpConfig.gelu(hidden).withNorm(norm).withInner(2L * hidden))
                    .withHiddenDropout(residuals.values)
                    .withDropPath(residuals.paths)
                    .withBias(bias)
                    .withInitializer(Initializer.zeros());
        }
    }

    private final OpenDevice open;
    final Case c;
    final TransformerLayer layer;
    final Parameters parameters;
    final Weights weights;
    final TransformerLayerWitness witness;
    final Sequences sequences;
    private final long seed;

    TransformerLayerPair(OpenDevice open, Case c) {
        this.open = open;
        this.c = c;
        seed = open.random().nextLong();
        TransformerLayerConfig config = c.config();
        ModelPlan plan = new ModelPlan();
        layer = new TransformerLayer(config, plan);
        parameters = Parameters.allocate(open.device(), plan, c.dtype, 1);
        weights = open.draw(parameters);
        List<int[]> rows = c.tokens.rows();
        boolean rotary = c.position == Position.ROTARY;
        if (rotary) {
            layer.rotate(RotaryEmbedding.of(open.scope(), 256, c.headDim));
        }
        witness =
                new TransformerLayerWitness(config, weights, rows, rotary ? new RotaryWitness(c.headDim, rows) : null);
        sequences = c.tokens.sequences(open.scope());
    }

    RealMatrix draw() {
        return open.normal(c.dtype, c.tokens.tokens(), c.hidden, 1);
    }

    Tensor tensor(RealMatrix matrix) {
        return open.tensor(c.dtype, matrix);
    }

    /** Begins a pass that draws the same numbers each time. */
    Pass begin() {
        Pass pass = open.pass().begin(sequences);
        pass.seed(seed, 5, 2);
        return pass;
    }

    /** Gives the witness what the layer will leave out: first of the attention, then of the MLP. */
    void keep() {
        if (c.residuals != Residuals.PLAIN) {
            Pass pass = begin();
            RealMatrix middle = factors(pass);
            witness.keep(middle, factors(pass));
        }
    }

    private RealMatrix factors(Pass pass) {
        return ResidualFactors.draw(pass, c.tokens, c.hidden, c.residuals.values, c.residuals.paths);
    }

    @Override
    public void close() {
        parameters.close();
    }
}
