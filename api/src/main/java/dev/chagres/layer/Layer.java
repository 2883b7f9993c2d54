package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.PassObserver.Direction;
import dev.chagres.model.Parameter;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A piece of a model with one input and one output, both [T, columns] in one type.
 *
 * <p>Callers write {@code y = forward(x, pass)} and, in the reverse order, {@code dx = backward(dy, pass)}. Authors write
 * {@link #run} and {@link #gradient}, which are handed the memory of their result: everything else that they take from {@link
 * Pass#temporary()} goes back when they return. What backward needs they take from {@link Pass#kept()} and hold in a {@link
 * Saved} object.
 *
 * <p>Whatever computes the result in {@code run} writes it into {@code y}, and in {@code gradient} into {@code dx}.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="layer"}
 *
 * <p>Threading: the device's thread.
 */
public abstract class Layer {
    private final String name;
    private final SavedPool<LayerCall> calls = new SavedPool<>(this, LayerCall::new);

    /**
     * For subclasses.
     *
     * @param name in errors and reports, such as {@code layers.3}; usually {@code plan.name()}
     */
    protected Layer(String name) {
        this.name = Checks.given("name", name).isEmpty() ? getClass().getSimpleName() : name;
    }

    /** Returns the name that errors and reports have for this layer. */
    public final String name() {
        return name;
    }

    /**
     * Enqueues the layer.
     *
     * @param x [T, columns], FLOAT32, BFLOAT16 or FLOAT16
     * @return y, [T, {@link #outputColumns}], until the pass is begun again; called inside another layer while nothing is
     *     saved, until that layer's call returns
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     */
    public final Tensor forward(Tensor x, Pass pass) {
        checkForward(x, pass);
        Tensor y = pass.kept().tensor(x.dtype(), x.size(0), outputColumns(x.size(1)));
        keepInput(enqueue(x, y, pass), x);
        return y;
    }

    /**
     * Enqueues the layer into memory of the caller's.
     *
     * @param y receives the output; may be {@code x} where {@link #worksInPlace} and the pass saves nothing
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     */
    public final void forward(Tensor x, Tensor y, Pass pass) {
        check(x, y, pass);
        keepInput(enqueue(x, y, pass), x);
    }

    private void checkForward(Tensor x, Pass pass) {
        checkInput(x, pass);
        if (needsAlignment()) {
            Checks.aligned("x", x);
        }
    }

    private static void keepInput(@Nullable LayerCall call, Tensor x) {
        if (call != null) {
            call.keepInput(x);
        }
    }

    /** As {@link #forward(Tensor, Tensor, Pass)}, of an {@code x} in temporary memory, which nothing reads after the call. */
    final void forwardOfTemporary(Tensor x, Tensor y, Pass pass) {
        check(x, y, pass);
        LayerCall call = enqueue(x, y, pass);
        if (call != null) {
            call.forgetInput();
        }
    }

    private void check(Tensor x, Tensor y, Pass pass) {
        checkInput(x, pass);
        Checks.matrix(pass.stream(), "y", y, x.dtype(), x.size(0), outputColumns(x.size(1)));
        Checks.writable("y", y);
        checkPlaces("y", y, "x", x, worksInPlace() && !pass.isSaving());
        checkAligned("x", x, "y", y);
    }

    /**
     * Enqueues the layer once arguments were checked.
     *
     * @return what backward is checked against, without its input; null while nothing is saved
     */
    private @Nullable LayerCall enqueue(Tensor x, Tensor y, Pass pass) {
        boolean saving = pass.isSaving();
        boolean learns = saving && (x.requiresGradient() || requiresGradient());
        Saved mark = pass.saved().top();
        long site = pass.draws().site();
        Scope before = pass.memory().enter();
        boolean done = false;
        try {
            pass.calls().begin(Direction.FORWARD);
            pass.saving(learns);
            runObserved(x, y, pass);
            pass.saving(saving);
            pass.calls().end(Direction.FORWARD);
            done = true;
        } finally {
            pass.saving(saving);
            pass.memory().leave(before);
            if (!done) {
                pass.calls().fail();
                pass.gradients().failForward();
                pass.saved().dropTo(mark);
                pass.draws().restoreSite(site);
            }
        }
        Inside.requireGradient(y, learns);
        if (!saving) {
            return null;
        }
        LayerCall call = calls.pushAlways(pass);
        call.set(x, y, learns);
        return call;
    }

    private void runObserved(Tensor x, Tensor y, Pass pass) {
        Observers observers = pass.observers();
        if (observers.isEmpty()) {
            run(x, y, pass);
            return;
        }
        observers.entering(this, Direction.FORWARD, pass);
        long keptBefore = pass.memory().keptScope().usedBytes();
        try {
            run(x, y, pass);
        } catch (RuntimeException | Error failure) {
            observers.failed(this, Direction.FORWARD, pass);
            throw failure;
        }
        observers.left(this, Direction.FORWARD, pass, pass.memory().keptScope().usedBytes() - keptBefore);
    }

    /**
     * Enqueues the gradients: of the parameters, and of the input.
     *
     * @param dy gradient of the output, like it
     * @return gradient of the input, like it; zeros where the input requires none
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's, or inside {@code
     *     Communicator.group}
     */
    public final Tensor backward(Tensor dy, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        LayerCall call = calls.peek(pass);
        call.ensureInput();
        call.checkOutputGradient(dy, pass.stream());
        if (needsAlignment()) {
            Checks.aligned("dy", dy);
        }
        Tensor dx = call.inputGradient(pass.temporary());
        enqueueGradient(call, dy, dx, pass);
        if (!call.inputLearns()) {
            dx.zero(pass.stream());
        }
        return dx;
    }

    /**
     * Enqueues the gradients into memory of the caller's.
     *
     * @param dx receives the gradient of the input, where that requires one; may be {@code dy} where {@link #worksInPlace}
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's, or inside {@code
     *     Communicator.group}
     */
    public final void backward(Tensor dy, Tensor dx, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        LayerCall call = calls.peek(pass);
        call.checkOutputGradient(dy, pass.stream());
        call.checkInputGradient(dx, pass.stream());
        checkPlaces("dx", dx, "dy", dy, worksInPlace());
        call.checkApart(dx);
        checkAligned("dy", dy, "dx", dx);
        enqueueGradient(call, dy, dx, pass);
    }

    /** Enqueues the gradients once arguments were checked. */
    private void enqueueGradient(LayerCall call, Tensor dy, Tensor dx, Pass pass) {
        calls.pop(pass);
        if (!call.learns()) {
            return;
        }
        Scope before = pass.memory().enter();
        boolean done = false;
        try {
            pass.calls().begin(Direction.BACKWARD);
            gradientObserved(dy, dx, pass);
            pass.calls().end(Direction.BACKWARD);
            done = true;
        } finally {
            pass.memory().leave(before);
            if (!done) {
                pass.calls().fail();
                pass.gradients().fail();
            }
        }
    }

    private void gradientObserved(Tensor dy, Tensor dx, Pass pass) {
        Observers observers = pass.observers();
        if (observers.isEmpty()) {
            gradient(dy, dx, pass);
            return;
        }
        observers.entering(this, Direction.BACKWARD, pass);
        try {
            gradient(dy, dx, pass);
        } catch (RuntimeException | Error failure) {
            observers.failed(this, Direction.BACKWARD, pass);
            throw failure;
        }
        observers.left(this, Direction.BACKWARD, pass, 0);
    }

    /** Returns the columns of the input of the forward call that {@link #backward} would undo now. */
    final long inputColumnsOfLastCall(Pass pass) {
        return calls.peek(pass).inputColumns();
    }

    private void checkInput(Tensor x, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.floats(pass.stream(), "x", x);
        if (x.rank() != 2) {
            throw new IllegalArgumentException("x: " + name + " expected [T, columns], got " + Checks.describe(x));
        }
        checkInput(x);
    }

    /** The result may take the argument's place exactly, where that is allowed, and never a part of it. */
    private void checkPlaces(String result, Tensor to, String argument, Tensor from, boolean inPlace) {
        if (inPlace) {
            Checks.apartOrSame(result, to, argument, from);
        } else {
            Checks.apart(result, to, argument, from);
        }
    }

    private void checkAligned(String argument, Tensor tensor, String result, Tensor to) {
        if (needsAlignment()) {
            Checks.aligned(argument, tensor);
            Checks.aligned(result, to);
        }
    }

    /** Returns whether tensors must begin at a multiple of 16 bytes: false, unless a kernel of the layer asks for it. */
    boolean needsAlignment() {
        return false;
    }

    /** Returns what errors call a layer, or something else that calls are made on, such as an embedding. */
    static String nameOf(Object caller) {
        return switch (caller) {
            case Layer layer -> layer.name;
            case Embedding embedding -> embedding.name();
            case DotProductAttention attention -> attention.name();
            case FanOut fan -> fan.name();
            default -> caller.toString();
        };
    }

    /**
     * Checks that {@code parameter} lies where {@code x} does.
     *
     * @param caller named in the error
     */
    static void checkHere(Object caller, Parameter parameter, Tensor x) {
        Tensor weight = parameter.isEightBitsOnly() ? parameter.owner().gradients() : parameter.unreadWeight();
        if (Inside.state(weight) != Inside.state(x)) {
            throw new IllegalArgumentException(
                    nameOf(caller) + ": expected parameter " + parameter.name() + " on device "
                            + x.deviceIndex() + ", where the input lies, got it on device " + weight.deviceIndex()
                            + (weight.deviceIndex() == x.deviceIndex() ? ", opened another time" : ""));
        }
    }

    // ---- for authors

    /**
     * Enqueues the layer.
     *
     * @param y receives the output
     */
    protected abstract void run(Tensor x, Tensor y, Pass pass);

    /**
     * Enqueues the gradients of the latest {@link #run} that was not undone yet. Where the input requires no gradient ({@link
     * Tensor#requiresGradient}) nothing need be written to {@code dx}.
     *
     * @param dy gradient of the output
     * @param dx receives the gradient of the input
     */
    protected abstract void gradient(Tensor dy, Tensor dx, Pass pass);

    /** Returns the columns of the output of an input with these columns: as many, unless a layer says otherwise. */
    public long outputColumns(long inputColumns) {
        return inputColumns;
    }

    /** Returns whether a parameter of this layer is trained: false, unless a layer says otherwise. */
    public boolean requiresGradient() {
        return false;
    }

    /** Returns whether {@code dx} may be {@code dy} and, while nothing is saved, {@code y} may be {@code x}. */
    public boolean worksInPlace() {
        return false;
    }

    /**
     * Checks what is particular to this layer before anything is enqueued.
     *
     * @throws IllegalArgumentException when the input does not fit
     */
    protected void checkInput(Tensor x) {}

    /**
     * Returns which kernels run for an input like that of {@code pass}, line by line, and why not the others.
     *
     * @param x an input as {@link #forward(Tensor, Pass)} takes it; what it holds does not count
     * @param pass a begun one: it says how the sequences lie, which recipe computes the products, and whether it trains
     * @throws IllegalArgumentException when {@code forward} would refuse the input, the sequences, or the bias or mask of scores; what
     *     a {@link FanOut} was not given yet is not checked
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     */
    public final String explain(Tensor x, Pass pass) {
        checkForward(x, pass);
        return explanation(x, pass);
    }

    /** Returns what {@link #explain} does inside another layer, whose input {@code x} is: not its columns, but its type and rows count. */
    final String explainInside(Tensor x, Pass pass) {
        return explanation(x, pass);
    }

    /** Returns what {@link #explain} does, of this layer. */
    protected String explanation(Tensor x, Pass pass) {
        return name + ": " + getClass().getSimpleName();
    }

    /** Returns whether a parameter of any of these layers is trained. */
    static boolean anyRequiresGradient(@Nullable Layer... layers) {
        for (Layer layer : layers) {
            if (layer != null && layer.requiresGradient()) {
                return true;
            }
        }
        return false;
    }

    /** Returns sizes and options for {@link #toString}, such as {@code in=32, out=96}; nothing unless a layer says more. */
    protected String summary() {
        return "";
    }

    /** Returns the layers inside, which {@link #toString} shows below this one; none unless a layer says more. */
    protected List<Layer> inside() {
        return List.of();
    }

    /** Returns name, class, sizes and what is not as usual in a line, and a line for each layer inside. */
    @Override
    public String toString() {
        String type =
                getClass().getSimpleName().isEmpty() ? "Layer" : getClass().getSimpleName();
        StringBuilder text = new StringBuilder(LayerSummary.line(name.equals(type) ? "" : name, type, summary()));
        for (Layer layer : inside()) {
            text.append('\n').append(layer.toString().indent(2).stripTrailing());
        }
        return text.toString();
    }
}
