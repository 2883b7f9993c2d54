package dev.chagres.models.text;

import com.hubspot.jinjava.Jinjava;
import com.hubspot.jinjava.JinjavaConfig;
import com.hubspot.jinjava.el.ExtendedSyntaxBuilder;
import com.hubspot.jinjava.el.TruthyTypeConverter;
import com.hubspot.jinjava.el.ext.AdditionOperator;
import com.hubspot.jinjava.el.ext.AstDict;
import com.hubspot.jinjava.el.ext.AstList;
import com.hubspot.jinjava.el.ext.AstTuple;
import com.hubspot.jinjava.el.ext.ExtendedParser;
import com.hubspot.jinjava.el.ext.PowerOfOperator;
import com.hubspot.jinjava.objects.SafeString;
import java.util.Map;
import jinjava.de.odysseus.el.ExpressionFactoryImpl;
import jinjava.de.odysseus.el.misc.TypeConverter;
import jinjava.de.odysseus.el.tree.Bindings;
import jinjava.de.odysseus.el.tree.TreeStore;
import jinjava.de.odysseus.el.tree.impl.Builder;
import jinjava.de.odysseus.el.tree.impl.Cache;
import jinjava.de.odysseus.el.tree.impl.Parser;
import jinjava.de.odysseus.el.tree.impl.ast.AstBinary;
import jinjava.de.odysseus.el.tree.impl.ast.AstNode;
import jinjava.de.odysseus.el.tree.impl.ast.AstParameters;
import jinjava.javax.el.ELContext;
import jinjava.javax.el.ExpressionFactory;
import org.jspecify.annotations.Nullable;

/**
 * The library, whose {@code +} adds no text to what is none, as Python's does not, and whose {@code ~} writes values as Python does.
 *
 * <p>Threading: one thread at a time.
 */
final class PythonJinja extends Jinjava {
    private static final int TREES = 1000;

    private final ExpressionFactory expressions =
            new ExpressionFactoryImpl(new TreeStore(new Syntax(), new Cache(TREES)), new Texts());

    PythonJinja(JinjavaConfig config) {
        super(config);
    }

    @Override
    public ExpressionFactory getExpressionFactory() {
        return expressions;
    }

    private static final class Texts extends TruthyTypeConverter {
        private static final long serialVersionUID = 1L;

        @Override
        protected String coerceToString(@Nullable Object value) {
            String text = value == null ? null : PythonValue.text(value);
            return text == null ? super.coerceToString(value) : text;
        }
    }

    private static final class Syntax extends ExtendedSyntaxBuilder {
        private static final long serialVersionUID = 1L;

        Syntax() {
            super(Builder.Feature.METHOD_INVOCATIONS, Builder.Feature.VARARGS);
        }

        @Override
        protected Parser createParser(String expression) {
            return new ExtendedParser(this, expression) {
                @Override
                protected AstList createAstList(AstParameters elements) {
                    return new AstList(elements) {
                        @Override
                        public Object eval(Bindings bindings, ELContext context) {
                            return JinjaLimits.made(super.eval(bindings, context));
                        }
                    };
                }

                @Override
                protected AstTuple createAstTuple(AstParameters elements) {
                    return new AstTuple(elements) {
                        @Override
                        public Object eval(Bindings bindings, ELContext context) {
                            return JinjaLimits.made(super.eval(bindings, context));
                        }
                    };
                }

                @Override
                protected AstDict createAstDict(Map<AstNode, AstNode> fields) {
                    return new AstDict(fields) {
                        @Override
                        public Object eval(Bindings bindings, ELContext context) {
                            return JinjaLimits.made(super.eval(bindings, context));
                        }
                    };
                }

                @Override
                protected AstBinary createAstBinary(AstNode left, AstNode right, AstBinary.Operator operator) {
                    AstBinary.Operator other = operator == AdditionOperator.OP ? new Addition() : operator;
                    return super.createAstBinary(
                            left,
                            right,
                            operator == AstBinary.MUL || operator == PowerOfOperator.OP
                                    ? (bindings, context, a, b) ->
                                            JinjaLimits.bounded(operator.eval(bindings, context, a, b))
                                    : other);
                }
            };
        }
    }

    private static final class Addition extends AdditionOperator {
        @Override
        protected Object apply(TypeConverter converter, @Nullable Object left, @Nullable Object right) {
            if (isText(left) != isText(right)) {
                throw new JinjaTemplate.Refusal(
                        "expected two texts, or none, to add, got " + kind(left) + " and " + kind(right));
            }
            return super.apply(
                    converter,
                    left instanceof SafeString safe ? safe.getValue() : left,
                    right instanceof SafeString safe ? safe.getValue() : right);
        }

        private static boolean isText(@Nullable Object value) {
            return value instanceof CharSequence || value instanceof SafeString;
        }

        private static String kind(@Nullable Object value) {
            return value == null ? "nothing" : isText(value) ? "a text" : "another value";
        }
    }
}
