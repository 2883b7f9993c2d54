package dev.chagres.pass;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Turns;
import dev.chagres.ops.ProductPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.PassRecord;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

// Over 400 lines: nearly half are Javadoc, and most methods are one line. The classes of the fields do the work.

/**
 * Carries one micro-batch through a model, forward and backward. A pass owns what all layers share: memory, sequences, random numbers, and
 * the order in which forward calls have saved tensors.
 *
 * <p>A pass is made once, and {@link #begin()} is called for each micro-batch; from the second micro-batch on nothing is allocated. {@link
 * #begin()} closes every tensor that the pass has handed out: using one throws until {@link #begin()} was called {@value Turns#COUNT}
 * times, see {@link Scope}. Several passes may be in use at once on one stream, as long as calls of one
 * are not made inside a layer's call of another.
 *
 * <p>Two switches: a <em>training</em> pass applies dropout, and a <em>saving</em> pass keeps what backward needs.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="pass"}
 *
 * <p>Threading: the device's thread.
 */
public final class Pass implements AutoCloseable {
    private final Stream stream;
    private final boolean training;
    private final PassMemory memory;
    private final RngState draws;
    private final PassRecipe recipe;
    private final PassGradients gradients;
    private final ContextStack saved;
    private final Observers observers = new Observers();
    /** What {@link #withoutSaving} returns. */
    private final Turns<SavingSwitch> savingSwitches = new Turns<>(SavingSwitch::new);

    private final PassHooks calls = new PassHooks(this);
    private final List<PassState> states = new ArrayList<>();
    private ProductPlan productPlan = ProductPlan.FIRST;
    private ActivationOffload offload = ActivationOffload.none();
    private boolean saving;
    private boolean begun;
    private long microBatches;
    private @Nullable Sequences sequences;

    private Pass(Stream stream, boolean training) {
        this.stream = stream;
        this.training = training;
        memory = new PassMemory(stream);
        draws = new RngState(stream);
        recipe = new PassRecipe(stream, training);
        saved = new ContextStack(stream);
        gradients = new PassGradients(stream);
        saving = training;
    }

    /** Makes a pass that applies dropout and keeps what backward needs, on the device's own stream. */
    public static Pass training(Device device) {
        return training(Checks.given("device", device).stream());
    }

    /** Makes a pass that applies dropout and keeps what backward needs. */
    public static Pass training(Stream stream) {
        return new Pass(Checks.given("stream", stream), true);
    }

    /** Makes a pass without dropout that keeps nothing, on the device's own stream. */
    public static Pass evaluation(Device device) {
        return evaluation(Checks.given("device", device).stream());
    }

    /** Makes a pass without dropout that keeps nothing. */
    public static Pass evaluation(Stream stream) {
        return new Pass(Checks.given("stream", stream), false);
    }

    /**
     * Begins a micro-batch and closes the tensors that the pass has handed out before. If a backward call of the previous micro-batch has
     * failed, or was refused and not repeated, the gradients of this step are discarded, also those of its earlier micro-batches: see {@link
     * Parameters#forgetGradients}. If a forward call has failed and no gradient was written, the amaxes that the micro-batch has recorded are
     * discarded: see {@link PassRecord#takeBack}.
     *
     * @throws IllegalStateException inside a layer's call or {@code Communicator.group}, or when the pass, its stream or its device
     *     is closed
     */
    public Pass begin() {
        ensureBetweenCalls("begin");
        giveBack();
        begun = true;
        microBatches++;
        draws.begin();
        recipe.begin(Inside.capture(stream));
        return this;
    }

    /**
     * Ends the micro-batch: closes the tensors that the pass has handed out, and enlarges its memory to the most that was ever in use, as
     * {@link #begin()} does. Call it before a capture: see {@link Stream#capture}.
     *
     * @throws IllegalStateException inside a layer's call or {@code Communicator.group}, or when the pass, its stream or its device
     *     is closed
     */
    public void end() {
        ensureBetweenCalls("end");
        giveBack();
        begun = false;
        microBatches++;
    }

    /** Returns a number that changes with each {@link #begin()} and {@link #end()}. */
    long microBatch() {
        return microBatches;
    }

    /**
     * Marks this micro-batch as failed outside of layers' calls: the next {@link #begin()} discards the gradients of this step, as after a
     * backward call that failed.
     *
     * @throws IllegalStateException when a stage of a pipeline calls it, which would discard gradients of earlier micro-batches of the run
     */
    public void abandon() {
        ensureThread();
        calls.ensureNotLent("abandon");
        gradients.fail();
    }

    /** Checks that the calling thread drives the device, before it changes what only the host keeps; none drives a closed one. */
    private void ensureThread() {
        if (!Inside.state(stream).isClosed()) {
            Inside.state(stream).ensureCurrent();
        }
    }

    private void ensureBetweenCalls(String call) {
        stream.handle();
        draws.ensureOpen(this);
        memory.ensureOutsideCalls(call);
        calls.ensureNotLent(call);
        Inside.state(stream).ensureNotGrouping(call);
    }

    private void giveBack() {
        saved.dropTo(null);
        forgetFailed();
        memory.restart();
        states.forEach(PassState::restart);
        sequences = null;
    }

    /** Ends the micro-batch for gradients and recipes, which forget what has failed. */
    private void forgetFailed() {
        boolean failed = gradients.end();
        if (failed) {
            recipe.takeBack();
        }
    }

    /**
     * Begins a micro-batch over these sequences: {@link #begin()}, then {@link #sequences(Sequences)}. Their offsets must lie in another
     * scope than the pass's own, which is restarted.
     */
    public Pass begin(Sequences newSequences) {
        Checks.given("sequences", newSequences).check();
        begin();
        try {
            sequences(newSequences);
        } catch (IllegalStateException e) {
            throw new IllegalStateException(
                    "sequences: their offsets were in the pass's memory, which begin() has reused; call pass.begin()"
                            + " first, then pass.sequences(…) with those of pass.scope()",
                    e);
        }
        return this;
    }

    /** Sets which token belongs to which sequence from now on; it may change between layers. */
    public void sequences(Sequences newSequences) {
        ensureThread();
        Checks.given("sequences", newSequences).check();
        sequences = newSequences;
    }

    /**
     * Returns which token belongs to which sequence.
     *
     * @throws IllegalStateException when {@link #sequences(Sequences)} was not called
     */
    public Sequences sequences() {
        Sequences present = sequences;
        if (present == null) {
            throw new IllegalStateException(
                    "the pass has no sequences: call begin(sequences) or sequences(…) before a layer that attends");
        }
        return present;
    }

    /**
     * Computes the products that {@code newQuantizers} covers in eight bits from now on, also after {@link #begin()}, until {@link
     * #noAutocast}. Backward uses the recipe of its forward call.
     *
     * <p>Source: TE's {@code autocast(enabled=True)}.
     *
     * @throws IllegalArgumentException when they are those of another device or stream
     */
    public void autocast(Quantizers newQuantizers) {
        ensureThread();
        recipe.autocast(newQuantizers);
    }

    /**
     * Computes every product in the model's type from now on, but records the amaxes that the recipe would record, forward and backward.
     * {@link Parameters#nextStep} computes scales from them.
     *
     * <p>Source: TE's {@code autocast(enabled=False, calibrating=True)}.
     *
     * @throws IllegalStateException when this pass evaluates
     * @throws IllegalArgumentException when they are those of another device or stream
     */
    public void calibrate(Quantizers newQuantizers) {
        ensureThread();
        recipe.calibrate(newQuantizers);
    }

    /** Computes every product in the model's type from now on. */
    public void noAutocast() {
        ensureThread();
        recipe.restore(null, false);
    }

    /**
     * Chooses the kernels of matrix products by {@code plan} from now on, also after {@link #begin()}. The default is {@link
     * ProductPlan#FIRST}: Transformer Engine's kernels, without measuring. {@link ProductPlan#MEASURED} is for steps that repeat their
     * sizes; it measures in the first one, so run one step before a capture.
     */
    public void productPlan(ProductPlan plan) {
        ensureThread();
        productPlan = Checks.given("plan", plan);
    }

    /** Returns the plan by which kernels of matrix products are chosen. */
    public ProductPlan productPlan() {
        return productPlan;
    }

    /** Keeps inputs of layers in the host's memory between forward and backward from now on, also after {@link #begin()}; none by default. */
    public void offload(ActivationOffload newOffload) {
        ensureThread();
        offload = Checks.given("newOffload", newOffload);
    }

    /** Returns of how many layers the inputs lie in the host's memory. */
    public ActivationOffload offload() {
        return offload;
    }

    /** Returns the bytes of page-locked memory of the host that the pass holds. */
    public long hostBytes() {
        long bytes = 0;
        for (int i = 0; i < states.size(); i++) {
            bytes += states.get(i).hostBytes();
        }
        return bytes;
    }

    /** For authors of layers: returns the recipe's state, also while the pass calibrates; null after {@link #noAutocast}. */
    public @Nullable Quantizers quantizers() {
        return recipe.quantizers();
    }

    /** Returns whether the pass only records amaxes for the recipe. */
    public boolean isCalibrating() {
        return recipe.isCalibrating();
    }

    /** For authors of layers: returns whether casts of this pass record amaxes, as those of a training pass do. */
    public AmaxRecording recording() {
        return recipe.recording();
    }

    /**
     * Fixes the random numbers of this micro-batch. Without this call seed and step are 0 and the micro-batch is the number of calls of
     * {@link #begin()} so far.
     *
     * @param seed of the run
     * @param step the run's step, such as {@link Parameters#step()}
     * @param microBatch its number within the step
     * @throws IllegalStateException when the pass is closed, or while its stream captures
     */
    public void seed(long seed, long step, long microBatch) {
        ensureThread();
        draws.ensureOpen(this);
        draws.seed(seed, step, microBatch);
    }

    /** Returns the stream on which everything is enqueued. */
    public Stream stream() {
        return stream;
    }

    /** Returns the device on which everything is computed. */
    public Device device() {
        return stream.device();
    }

    /** Returns the memory that lasts until the next {@link #begin()}, for inputs that live as long. */
    public Scope scope() {
        return memory.own;
    }

    /** Returns whether dropout is applied. */
    public boolean isTraining() {
        return training;
    }

    /** Returns whether forward keeps what backward needs. */
    public boolean isSaving() {
        return saving;
    }

    /**
     * For authors of layers: returns the scope for tensors that backward needs. While nothing is saved, its memory is taken back when the
     * layer's call returns.
     */
    public Scope kept() {
        return memory.kept(saving);
    }

    /** For authors of layers: returns the scope for temporary tensors, whose memory is taken back when the layer's call returns. */
    public Scope temporary() {
        return memory.temporary();
    }

    /**
     * For authors of layers: announces that the gradient of {@code parameter} is written now, and returns whether to overwrite or to add.
     */
    public Output nextGradient(Parameter parameter) {
        return gradients.next(parameter);
    }

    /**
     * For authors of layers: returns the state of the next random numbers of this pass, INT64 [2] (seed, offset), in
     * {@link #kept()}. The numbers follow from seed, step, micro-batch and the number of draws before this one.
     */
    public Tensor draw() {
        return draw(0);
    }

    /** For authors of layers: {@link #draw()}, with the kernel's counter advanced by {@code skipped}. */
    public Tensor draw(int skipped) {
        return draws.next(kept(), skipped);
    }

    /**
     * For authors of layers whose kernels draw at several places: begins the next draw, of which {@link #writeDraw} writes one state or
     * several.
     */
    public void beginDraw() {
        draws.begin(kept());
    }

    /**
     * Enqueues the random state of the draw that was begun last.
     *
     * @param state receives seed and offset, INT64 [2]
     * @param skipped by which the kernel's counter is advanced
     * @throws IllegalStateException when {@link #beginDraw} was not called
     */
    public void writeDraw(Tensor state, int skipped) {
        draws.write(state, skipped);
    }

    /**
     * Saves nothing for backward until the returned object is closed: for a head that is only evaluated.
     *
     * {@snippet file="dev/chagres/ExamplesTest.java" region="withoutSaving"}
     *
     * @throws IllegalStateException when saving was switched off already
     */
    public SavingSwitch withoutSaving() {
        ensureThread();
        if (savingSwitches.present().open) {
            throw new IllegalStateException("saving is switched off already; close what withoutSaving returned first");
        }
        SavingSwitch made = savingSwitches.next();
        made.open = true;
        made.before = saving;
        saving = false;
        return made;
    }

    /**
     * Switches saving on again when it is closed. A second call does nothing.
     *
     * <p>Threading: the device's thread.
     */
    public final class SavingSwitch implements AutoCloseable {
        private boolean open;
        private boolean before;

        private SavingSwitch() {}

        @Override
        public void close() {
            ensureThread();
            if (open) {
                open = false;
                saving = before;
            }
        }
    }

    /** Notifies {@code observer} of every layer's call from now on. */
    public void observe(PassObserver observer) {
        ensureThread();
        observers.add(Checks.given("observer", observer));
    }

    /** Stops notifying {@code observer}. */
    public void forget(PassObserver observer) {
        ensureThread();
        observers.remove(observer);
    }

    /** Returns whether there are observers. */
    public boolean isObserved() {
        return !observers.isEmpty();
    }

    /**
     * For authors of layers: returns what this pass keeps of class {@code type}, which all its layers share; made when it is first asked for.
     *
     * @param maker makes one of this pass; such as a constructor, so that asking makes no garbage
     */
    public <S extends PassState> S state(Class<S> type, Function<Pass, S> maker) {
        for (int i = 0; i < states.size(); i++) {
            if (states.get(i).getClass() == type) {
                return type.cast(states.get(i));
            }
        }
        ensureThread();
        draws.ensureOpen(this);
        S made = Checks.given("maker.apply(pass)", maker.apply(this));
        states.add(made);
        return made;
    }

    /** For sharding: returns the calls of this pass that may use parameters, and their observer. */
    public PassHooks calls() {
        return calls;
    }

    /** Returns the most bytes that the pass has held at one time since it was made, without the scratch memory of the stream. */
    public long peakBytes() {
        return memory.own.peakBytes();
    }

    // ---- for the layers of this package

    Observers observers() {
        return observers;
    }

    PassMemory memory() {
        return memory;
    }

    ContextStack saved() {
        return saved;
    }

    PassRecipe recipe() {
        return recipe;
    }

    PassGradients gradients() {
        return gradients;
    }

    RngState draws() {
        return draws;
    }

    /**
     * For authors of objects with calls of their own that are no layers: opens the memory that {@link #temporary} hands out from now on,
     * until {@link #leave}.
     *
     * @return the memory of the caller, for {@link #leave}
     */
    public Scope enter() {
        return memory.enter();
    }

    /**
     * Takes back the memory that {@link #temporary} has handed out since {@link #enter}. Call it in a {@code finally} block.
     *
     * @param before what {@link #enter} has returned
     * @throws IllegalStateException when no call of {@link #enter} is open
     */
    public void leave(Scope before) {
        memory.leave(Checks.given("before", before));
    }

    /**
     * For authors of objects with calls of their own that are no layers: records that a backward call has failed, so that the next {@link
     * #begin()} discards the gradients of this step.
     */
    public void fail() {
        gradients.fail();
    }

    /**
     * For authors of layers: checks that {@code parameter}, which backward reads to recompute what forward has not saved, is as forward has
     * read it.
     *
     * @throws IllegalStateException when it was written since
     */
    public void ensureUnchanged(Parameter parameter) {
        gradients.ensureUnchanged(Checks.given("parameter", parameter));
    }

    /** Returns the sequences, or null when they were not set. */
    @Nullable
    Sequences sequencesOrNull() {
        return sequences;
    }

    void restoreSequences(@Nullable Sequences before) {
        sequences = before;
    }

    void saving(boolean on) {
        saving = on;
    }

    /** Returns whether the pass is open and was begun. */
    public boolean isBegun() {
        return begun;
    }

    /**
     * For authors of objects with calls of their own that are no layers: checks that a call may begin.
     *
     * @param caller named in errors, by its {@link Named#name} or else its {@code toString}
     * @throws IllegalStateException when the pass was not begun, inside {@code Communicator.group}, or after a backward call that failed
     */
    public void ensureBegun(Object caller) {
        stream.handle();
        if (Inside.state(stream).isGrouping()) {
            // Collectives of the call would run after the kernels that read their results.
            Inside.state(stream).ensureNotGrouping(Layer.nameOf(caller));
        }
        if (!begun) {
            draws.ensureOpen(this);
            throw new IllegalStateException(
                    Layer.nameOf(caller) + ": the pass was not begun; call pass.begin() or begin(sequences) first");
        }
        gradients.ensureWhole(caller);
    }

    /** Frees the memory of the pass, and forgets gradients of a step that has failed, as {@link #begin()} does. A second call does nothing. */
    @Override
    public void close() {
        Inside.state(stream).ensureCloses();
        calls.ensureNotLent("close");
        begun = false;
        saved.dropTo(null);
        try {
            if (!Inside.state(stream).isClosed()) {
                forgetFailed();
            }
        } finally {
            draws.close();
            states.forEach(PassState::close);
            states.clear();
            memory.own.close();
        }
    }

    @Override
    public String toString() {
        return (training ? "training" : "evaluation") + " pass on " + stream;
    }
}
