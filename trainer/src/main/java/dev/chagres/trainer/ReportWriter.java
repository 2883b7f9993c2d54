package dev.chagres.trainer;

import com.fasterxml.jackson.jr.ob.JSON;
import com.fasterxml.jackson.jr.ob.JSONComposer;
import com.fasterxml.jackson.jr.ob.comp.ObjectComposer;
import dev.chagres.DType;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.nccl.Operation;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.BuildVersion;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.math.MathContext;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * Writes the report: JSON Lines, first what was trained, then one object a step.
 *
 * <p>Each line goes to {@code FILE.part} as soon as its step is known, and {@link #finish} gives the file its name. A file
 * of that name is therefore never a torso: what a failure leaves behind is called {@code .part} and holds whole lines. A
 * pipe or device is written to directly.
 *
 * <p>Threading: one thread at a time.
 */
final class ReportWriter implements AutoCloseable {
    /** FP32 has 7.2 decimal digits. */
    private static final MathContext RATE_DIGITS = new MathContext(7);

    private final AtomicFile file;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream(512);

    /**
     * Opens the file to write.
     *
     * @param target the report's name
     * @throws java.io.UncheckedIOException when the file cannot be made, or another run writes it
     */
    ReportWriter(Path target) {
        file = AtomicFile.create(target);
    }

    /** Writes the first line of a run that loaded all of a file, or none. */
    void begin(RunText.RunDescription run) {
        begin(run, RecipeDifferences.NONE);
    }

    /** Writes the first line, with what was not loaded of a file whose run had another recipe. */
    void begin(RunText.RunDescription run, RecipeDifferences differences) {
        write(json -> {
            json.put("provider", run.provider()).put("device", run.device());
            ObjectComposer<?> libraries = json.startObjectField("libraries");
            for (var library : new TreeMap<>(run.libraries()).entrySet()) {
                libraries.put(library.getKey(), library.getValue());
            }
            libraries.end();
            TrainingPlan plan = run.plan();
            json.put("model", plan.start().name())
                    .put("form", plan.start().formText())
                    .put("parameters", run.parameters())
                    .put("seed", plan.seed())
                    .put("recipe", plan.recipe().toString())
                    .put("recompute", OptionWords.word(plan.recomputation()))
                    .put("graph", plan.enqueuing().steps() == ModelSetup.Steps.CAPTURED)
                    .put("steps", plan.steps())
                    .put("packing", plan.packing())
                    .put("context", plan.shape().context())
                    .put("tokensPerStep", plan.shape().tokensPerStep())
                    .put(
                            "accumulate",
                            plan.shape().microBatches() / plan.layout().dataRanks())
                    .put("ranks", plan.ranks());
            putStrategy(json, plan);
            putWindows(json, run.windows());
            json.put("smMargin", plan.enqueuing().margin().norms())
                    .put("productSmMargin", plan.enqueuing().margin().products())
                    .put("learningRate", rate(plan.schedule().peak()))
                    .put(plan.data().option(), plan.data().name())
                    .put("version", BuildVersion.text());
            if (plan.productGradients() != DType.FLOAT32) {
                json.put("gradientDtype", plan.productGradients().toString());
            }
            String numa = System.getenv(NumaBinding.NUMA);
            if (numa != null) {
                json.put("numa", numa);
            }
            TrainingData heldOut = plan.evaluation().data();
            if (heldOut != null) {
                json.put("heldOut", heldOut.name())
                        .put("evalEvery", plan.evaluation().every());
            }
            if (!differences.isEmpty()) {
                putNames(json, "ignored", differences.ignored());
                putNames(json, "begunAnew", differences.missing());
            }
        });
    }

    /** What several ranks split or shard; null for one rank, whatever strategy it was given. */
    private static void putStrategy(ObjectComposer<JSONComposer<OutputStream>> json, TrainingPlan plan)
            throws IOException {
        if (plan.ranks() == 1) {
            json.putNull("strategy");
        } else {
            json.put("strategy", plan.layout().toString());
        }
    }

    /** What NCCL made, as the options spell it; null where nothing is sharded. */
    private static void putWindows(ObjectComposer<JSONComposer<OutputStream>> json, EffectiveWindows made)
            throws IOException {
        putWord(json, "weightGather", made.weightGather());
        putWord(json, "gradientReduction", made.gradientReduction());
        String why = made.noWindows();
        if (why != null) {
            json.put("noWindows", why);
        }
    }

    private static void putWord(ObjectComposer<JSONComposer<OutputStream>> json, String key, @Nullable Enum<?> value)
            throws IOException {
        if (value == null) {
            json.putNull(key);
        } else {
            json.put(key, OptionWords.word(value));
        }
    }

    /** Writes a step's line, with the casts to eight bits that were measured in it. */
    void step(StepMetrics step, List<CastStatistics> casts) {
        write(json -> {
            json.put("step", step.step());
            putFinite(json, "loss", step.loss());
            json.put("tokens", step.tokens())
                    .put("paddedTokens", step.paddedTokens())
                    .put("stepMillis", shortest(step.stepMillis()))
                    .put("tokensPerSecond", step.tokensPerSecond());
            putFinite(json, "gradNorm", step.gradNorm());
            json.put("learningRate", rate(step.learningRate())).put("memoryBytes", step.memoryBytes());
            json.put("teraflops", step.teraflops());
            putFinite(json, "mfu", step.mfu());
            putFinite(json, "hfu", step.hfu());
            if (step.isSkipped()) {
                json.put("skipped", true);
            }
            if (!casts.isEmpty()) {
                putCasts(json, casts);
            }
            if (!step.ranks().isEmpty()) {
                putRanks(json, step.ranks());
            }
        });
    }

    /** Writes the line of an evaluation. */
    void evaluation(Evaluation.Result result) {
        write(json -> {
            json.put("evaluation", result.step());
            putFinite(json, "loss", result.loss());
            putFinite(json, "perplexity", result.perplexity());
            putFinite(json, "accuracy", result.accuracy());
            json.put("labelled", result.labelled())
                    .put("sequences", result.sequences())
                    .put("seconds", shortest(result.seconds()));
        });
    }

    /** Writes what was counted while the data were read, where there was something. */
    void counted(TrainingData data) {
        if (!data.counted().isEmpty()) {
            write(json -> {
                json.put("data", data.name());
                for (var count : data.counted().entrySet()) {
                    json.putObject(count.getKey(), count.getValue());
                }
            });
        }
    }

    /** Returns what writes steps and evaluations, and at a run's end gives the file its name if there is one. */
    static Callback callback(Path file) {
        var writer = new ReportWriter(file);
        return new Callback() {
            private boolean used;

            @Override
            public void onStep(TrainingRun run, StepMetrics step) {
                used = true;
                writer.step(step, run.castStatistics());
            }

            @Override
            public void onEvaluation(TrainingRun run, Evaluation.Result result) {
                used = true;
                writer.evaluation(result);
            }

            @Override
            public void onEnd(TrainingRun run) {
                if (used) {
                    writer.finish();
                } else {
                    writer.discard();
                }
                writer.close();
            }
        };
    }

    private static void putNames(ObjectComposer<JSONComposer<OutputStream>> json, String key, List<String> names)
            throws IOException {
        var array = json.startArrayField(key);
        for (String name : names) {
            array.add(name);
        }
        array.end();
    }

    private static void putCasts(ObjectComposer<JSONComposer<OutputStream>> json, List<CastStatistics> casts)
            throws IOException {
        var array = json.startArrayField("casts");
        for (CastStatistics cast : casts) {
            array.startObject()
                    .put("site", cast.site().name())
                    .put("role", cast.site().role().name().toLowerCase(Locale.ROOT))
                    .put("amax", shortest(cast.amax()))
                    .put("underflows", shortest(cast.underflows()))
                    .put("overflows", shortest(cast.overflows()))
                    .put("meanSquaredError", shortest(cast.meanSquaredError()))
                    .put("smallestScale", shortest(cast.smallestScale()))
                    .put("largestScale", shortest(cast.largestScale()))
                    .end();
        }
        array.end();
    }

    private static void putRanks(ObjectComposer<JSONComposer<OutputStream>> json, List<RankStep> ranks)
            throws IOException {
        var array = json.startArrayField("byRank");
        for (RankStep step : ranks) {
            var rank = array.startObject();
            rank.put("rank", step.rank()).put("stepMillis", shortest(step.millis()));
            var bytes = rank.startObjectField("bytes");
            for (Operation operation : Operation.values()) {
                Long moved = step.bytes().get(operation);
                if (moved != null) {
                    bytes.put(operation.toString(), moved);
                }
            }
            bytes.end();
            rank.end();
        }
        array.end();
    }

    /** Returns the file that holds the lines until {@link #finish}. */
    Path written() {
        return file.written();
    }

    /** Gives the file its name; nothing can be written after. */
    void finish() {
        file.publish();
    }

    /** Removes what was written, for a run that made no step: an older report stays. */
    void discard() {
        file.discard();
    }

    /** Closes the file; without {@link #finish} before, it keeps its {@code .part} name. */
    @Override
    public void close() {
        file.close();
    }

    /** JSON has no infinity and no NaN: null stands for them, in steps that were skipped. */
    private static void putFinite(ObjectComposer<JSONComposer<OutputStream>> json, String name, double value)
            throws IOException {
        if (Double.isFinite(value)) {
            json.put(name, shortest(value));
        } else {
            json.putNull(name);
        }
    }

    /** The number, where it is a float that with the fewest digits which tell it from other floats. */
    private static double shortest(double value) {
        float narrow = (float) value;
        return narrow == value ? Double.parseDouble(Float.toString(narrow)) : value;
    }

    /** A rate without its rounding error: 2.0E-4 where FP32 has 2.0000001E-4. */
    private static double rate(float value) {
        return new BigDecimal(value).round(RATE_DIGITS).doubleValue();
    }

    private interface Fields {
        void putInto(ObjectComposer<JSONComposer<OutputStream>> json) throws IOException;
    }

    private void write(Fields fields) {
        try {
            line.reset();
            var composer = JSON.std.composeTo((OutputStream) line);
            var object = composer.startObject();
            fields.putInto(object);
            object.end();
            composer.finish();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        line.write('\n');
        file.append(line.toByteArray());
    }
}
