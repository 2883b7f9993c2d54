package dev.chagres.cudnn;

import java.util.List;

/**
 * The operations of attention in FP8 in the order and with the types that cuDNN's engines look for: those of {@link AttentionOperations} with scales
 * between them.
 *
 * <p>Threading: that of the builder.
 */
record Fp8AttentionOperations(AttentionOperations of) {
    private static final int ROWS = 2;
    private static final int COLUMNS = 3;
    /** Ten times the compute capability of Hopper, and of Blackwell. */
    private static final int HOPPER = 90;

    private static final int BLACKWELL = 100;

    private void check() {
        AttentionOperations.Extras extras = of.extras();
        boolean other = extras.bias() != null
                || extras.slopes() != null
                || extras.sink() != null
                || extras.seed() != null
                || of.scores() != AttentionBuilder.UNCHANGED;
        if (other) {
            throw refusal(
                    "fp8", "a scale, masks and lengths alone", "a bias, slopes, a sink, dropout or a change of scores");
        }
        eight("q", of.q());
        alike("kT", of.kT());
    }

    Fp8Forward forward(GraphTensor v, DataType result) {
        check();
        of.values("v", v, 2);
        alike("v", v);
        GraphTensor x = of.masked(of.padded(scores(of.products(of.queriesAndKeys(), of.q(), of.kT(), ".product"))));
        onGpu(result, 16, 256, of.q(), of.kT(), v);
        AttentionOperations.Softmax softmax = of.softmax(x);
        GraphTensor weights = of.op(".weights", PointwiseMode.DIV, softmax.powers(), softmax.sum());
        GraphTensor amax = magnitude(".amaxS", weights);
        GraphTensor scaled = of.typed(of.q().type(), () -> times(".scaledWeights", weights, input("scaleS")));
        MatmulLimits limits = of.queriesByKeys();
        GraphTensor sum = of.products(limits, scaled, v, ".sums");
        Scaled o = scaled("", sum, input("descaleS"), input("descaleV"), "scaleO", "amaxO", result);
        return new Fp8Forward(o.result(), of.graph().output(softmax.stats()), amax, o.amax());
    }

    Fp8Gradients backward(GraphTensor dy, GraphTensor vT, GraphTensor o, GraphTensor stats, DataType result) {
        check();
        of.checkBackward(dy, vT, o, stats);
        alike("vT", vT);
        eight("dy", dy);
        GraphTensor descaleDy = input("descaleDy");
        GraphTensor product = of.op(".dyO", PointwiseMode.MUL, dy, o);
        GraphTensor along = of.graph().reduction(of.name() + ".along", ReductionMode.ADD, product, COLUMNS);
        GraphTensor rowSums = times(".rowSums", times(".alongDy", along, descaleDy), input("descaleO"));

        GraphTensor x = scores(of.products(of.queriesAndKeys(), of.q(), of.kT(), ".product"));
        onGpu(result, 128, 128, of.q(), of.kT(), dy, vT);
        GraphTensor exponent = of.op(".exponent", PointwiseMode.SUB, of.masked(of.padded(x)), stats);
        GraphTensor shares = of.op(".shares", PointwiseMode.EXP, exponent);
        GraphTensor weights = of.typed(of.q().type(), () -> times(".scaledWeights", shares, input("scaleS")));
        MatmulLimits toKeys = of.keysByQueries();
        GraphTensor dvSum = of.shared(
                of.products(toKeys, of.turned(".weightsT", weights, of.q().type()), dy, ".dvSums"),
                vT.dim(1),
                ".dvShared");
        Scaled dv = scaled(".dv", dvSum, input("descaleS"), descaleDy, "scaleDv", "amaxDv", result);

        GraphTensor ds = of.products(of.queriesAndKeys(), dy, vT, ".dWeights");
        ds = times(".dDescaled", times(".dDescaledDy", ds, descaleDy), input("descaleV"));
        ds = of.op(".dShares", PointwiseMode.MUL, of.op(".dCentered", PointwiseMode.SUB, ds, rowSums), shares);
        GraphTensor dp = times(".dScores", ds, of.number(".dScale", of.scale()));
        GraphTensor amaxDp = magnitude(".amaxDp", dp);
        GraphTensor rounded = of.typed(dy.type(), () -> times(".dScaled", dp, input("scaleDp")));
        GraphTensor descaleDp = input("descaleDp");
        GraphTensor keys = Layouts.transpose(of.graph(), of.name() + ".keys", of.kT(), 0, 1, COLUMNS, ROWS);
        GraphTensor dqSum = of.products(of.queriesByKeys(), rounded, keys, ".dqSums");
        Scaled dq = scaled(".dq", dqSum, descaleDp, input("descaleK"), "scaleDq", "amaxDq", result);
        GraphTensor dkSum = of.shared(
                of.products(toKeys, of.turned(".dScoresT", rounded, dy.type()), of.q(), ".dkSums"),
                of.kT().dim(1),
                ".dkShared");
        Scaled dk = scaled(".dk", dkSum, descaleDp, input("descaleQ"), "scaleDk", "amaxDk", result);
        return new Fp8Gradients(dq.result(), dk.result(), dv.result(), dq.amax(), dk.amax(), dv.amax(), amaxDp);
    }

    private GraphTensor scores(GraphTensor product) {
        GraphTensor x = of.scaled(product);
        return times(".descaled", times(".descaledQ", x, input("descaleQ")), input("descaleK"));
    }

    private record Scaled(GraphTensor result, GraphTensor amax) {}

    /** Takes the scales of both factors from a product, notes the largest magnitude, and puts that of the result. */
    private Scaled scaled(
            String part, GraphTensor sum, GraphTensor a, GraphTensor b, String scale, String amax, DataType result) {
        GraphTensor whole = times(part + ".whole", times(part + ".half", sum, a), b);
        GraphTensor y = of.typed(result, () -> times(part, whole, input(scale)));
        return new Scaled(y, magnitude("." + amax, whole));
    }

    private GraphTensor magnitude(String part, GraphTensor x) {
        GraphTensor y = Pointwises.reduced(of.graph(), of.name() + part, ReductionMode.AMAX, x, 1, 1, 1, 1);
        return of.graph().output(y, DataType.FLOAT);
    }

    private GraphTensor times(String part, GraphTensor x, GraphTensor factor) {
        return of.op(part, PointwiseMode.MUL, x, factor);
    }

    /** Returns the input of that name, which is declared where it is read first. */
    private GraphTensor input(String part) {
        return of.graph().declared(of.name() + "." + part, DataType.FLOAT, 1, 1, 1, 1);
    }

    private void eight(String argument, GraphTensor tensor) {
        if (tensor.type() != DataType.FP8_E4M3 && tensor.type() != DataType.FP8_E5M2) {
            throw refusal(argument, "FP8_E4M3 or FP8_E5M2", tensor);
        }
    }

    private void alike(String argument, GraphTensor tensor) {
        if (tensor.type() != of.q().type()) {
            throw refusal(argument, of.q().type() + " as q is", tensor);
        }
    }

    private IllegalArgumentException refusal(String argument, String expected, Object got) {
        return GraphChecks.refusal("attention", of.name(), argument, expected, got);
    }

    /** Says with the operation that was added last what cuDNN 9.19 lacks on a GPU. */
    private void onGpu(DataType result, long least, long most, GraphTensor... tensors) {
        boolean bottom = of.band().diagonal() == AttentionBuilder.Diagonal.BOTTOM_RIGHT;
        boolean eight = result == DataType.FP8_E4M3 || result == DataType.FP8_E5M2;
        String what = "attention in FP8"
                + (bottom ? " with a diagonal that ends bottom right" : "")
                + (eight ? "" : " with a result of " + result);
        of.graph().amend(o -> o.needsCapability(bottom || !eight ? BLACKWELL : HOPPER, what));
        long width = of.q().dim(COLUMNS);
        if (width % 16 != 0 || width < least || width > most) {
            String heads = least == most ? least + " elements" : "a multiple of 16 elements up to " + most;
            of.graph().amend(o -> o.refusedOnGpu("takes heads of " + heads + " in FP8, got " + width));
        } else if (List.of(tensors).stream().anyMatch(GraphTensor::isPacked)) {
            of.graph().amend(o -> o.refusedOnGpu("packs no sequences in FP8; cuDNN 9.23 does"));
        }
    }
}
