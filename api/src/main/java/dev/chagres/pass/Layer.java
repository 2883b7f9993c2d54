package dev.chagres.pass;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.PassObserver.Direction;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A piece of a model with one input and one output, both [T, columns] in one type.
 *
 * <p>Callers write {@code y = forward(x, pass)} and, in the reverse order, {@code dx = backward(dy, pass)}. Authors of layers write {@link
 * #run} and {@link #gradient}, which get the memory of their result as an argument. Memory from {@link Pass#temporary()} is taken back when
 * they return. Tensors that backward needs are allocated from {@link Pass#kept()} and held in a {@link SavedContext} object.
 *
 * <p>The last computation of {@code run} writes {@code y}, and that of {@code gradient} writes {@code dx}.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="layer"}
 *
 * <p>Threading: the device's thread.
 */
public abstract class Layer implements Named {
    private final String name;
    private final ContextPool<LayerCall> calls = new ContextPool<>(this, LayerCall::new);

    /**
     * For subclasses.
     *
     * @param name in errors and reports, such as {@code layers.3}; usually {@code plan.name()}
     */
    protected Layer(String name) {
        this.name = Checks.given("name", name).isEmpty() ? getClass().getSimpleName() : name;
    }

    @Override
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
     * Enqueues the layer; the result goes to memory of the caller.
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

    /** For authors: {@link #forward(Tensor, Tensor, Pass)} for an {@code x} in temporary memory that nothing reads after the call. */
    public final void forwardOfTemporary(Tensor x, Tensor y, Pass pass) {
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
     * @return the record against which backward is checked, without the input; null while nothing is saved
     */
    private @Nullable LayerCall enqueue(Tensor x, Tensor y, Pass pass) {
        boolean saving = pass.isSaving();
        boolean learns = saving && (x.requiresGradient() || requiresGradient());
        SavedContext mark = pass.saved().top();
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
     * Enqueues the gradients; the input's goes to memory of the caller.
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

    /** For authors: returns the columns of the input of the forward call that {@link #backward} would undo now. */
    protected final long inputColumnsOfLastCall(Pass pass) {
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

    /** The result may lie exactly where the argument lies, if {@code inPlace}, and must not overlap a part of it. */
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

    /** Returns whether tensors must begin at a multiple of 16 bytes: false, unless a kernel of the layer needs that. */
    protected boolean needsAlignment() {
        return false;
    }

    /** Returns the name in errors of a layer, or of another object with forward and backward calls, such as an embedding. */
    static String nameOf(Object caller) {
        return caller instanceof Named named ? named.name() : caller.toString();
    }

    /**
     * For authors: checks that {@code parameter} lies on the device of {@code x}.
     *
     * @param caller named in the error
     * @throws IllegalArgumentException when it lies on another
     */
    public static void checkHere(Object caller, Parameter parameter, Tensor x) {
        Checks.given("x", x);
        Tensor weight = Checks.given("parameter", parameter).isQuantizedOnly()
                ? parameter.owner().gradients()
                : parameter.unreadWeight();
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
     * Enqueues the gradients of the latest {@link #run} without a gradient call. If the input requires no gradient ({@link
     * Tensor#requiresGradient}), {@code dx} need not be written.
     *
     * @param dy gradient of the output
     * @param dx receives the gradient of the input
     */
    protected abstract void gradient(Tensor dy, Tensor dx, Pass pass);

    /** Returns the number of columns of the output for an input with {@code inputColumns}: the same, unless overridden. */
    public long outputColumns(long inputColumns) {
        return inputColumns;
    }

    /** Returns whether a parameter of this layer is trained: false, unless overridden. */
    public boolean requiresGradient() {
        return false;
    }

    /** Returns whether {@code dx} may be {@code dy} and, while nothing is saved, {@code y} may be {@code x}. */
    public boolean worksInPlace() {
        return false;
    }

    /**
     * Checks requirements of this layer on its input, before anything is enqueued.
     *
     * @throws IllegalArgumentException when the input does not fit
     */
    public void checkInput(Tensor x) {}

    /**
     * Returns which kernels run for an input like that of {@code pass}, line by line, and why not the others.
     *
     * @param x an input as {@link #forward(Tensor, Pass)} takes it; its contents are not read
     * @param pass a pass that was begun; sequences, recipe and training mode are taken from it
     * @throws IllegalArgumentException when {@code forward} would refuse the input, the sequences, or the bias or mask of scores; the
     *     tensor of a {@link SharedInput} is not checked before its forward call
     * @throws IllegalStateException when the pass was not begun, or inside {@code Communicator.group}
     */
    public final String explain(Tensor x, Pass pass) {
        checkForward(x, pass);
        return explanation(x, pass);
    }

    /** For authors: {@link #explain} for this layer inside another one with input {@code x}, of which only type and rows are used. */
    public final String explainInside(Tensor x, Pass pass) {
        return explanation(Checks.given("x", x), Checks.given("pass", pass));
    }

    /** Returns the lines of {@link #explain} for this layer. */
    protected String explanation(Tensor x, Pass pass) {
        return name + ": " + getClass().getSimpleName();
    }

    /** Returns whether a parameter of one of two layers is trained, without an array that each step would make anew. */
    protected static boolean anyRequiresGradient(@Nullable Layer first, @Nullable Layer second) {
        return (first != null && first.requiresGradient()) || (second != null && second.requiresGradient());
    }

    /** Returns whether a parameter of any of these layers is trained. */
    protected static boolean anyRequiresGradient(@Nullable Layer... layers) {
        for (Layer layer : layers) {
            if (layer != null && layer.requiresGradient()) {
                return true;
            }
        }
        return false;
    }

    /** Returns sizes and options for {@link #toString}, such as {@code in=32, out=96}; empty unless overridden. */
    public String summary() {
        return "";
    }

    /** Returns the layers inside, which {@link #toString} shows below this one; none unless overridden. */
    public List<Layer> inside() {
        return List.of();
    }

    /** Returns a line with name, class, sizes and options that differ from the defaults, and a line for each layer inside. */
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
