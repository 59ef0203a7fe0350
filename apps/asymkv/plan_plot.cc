#include "plan_plot.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numbers>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"

namespace asymkv::app {
namespace {

constexpr double kWidth = 980, kHeight = 560;
constexpr double kLeft = 78, kRight = 304, kTop = 52, kBottom = 62;
constexpr double kLabelStep = 17;  // between the labels of lines that end close to each other
constexpr double kTextSize = 13;

struct Colour {
  double red, green, blue;
};
constexpr Colour kInk{0.13, 0.13, 0.13}, kGrid{0.88, 0.88, 0.88};
constexpr Colour kLines[] = {{0, 0, 0},         {0, 0.447, 0.698},     {0.902, 0.624, 0},    {0, 0.620, 0.451},
                             {0.835, 0.369, 0}, {0.800, 0.475, 0.655}, {0.337, 0.706, 0.914}};

struct CairoDeleter {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
  void operator()(cairo_t* context) const { cairo_destroy(context); }
};
using Surface = std::unique_ptr<cairo_surface_t, CairoDeleter>;
using Context = std::unique_ptr<cairo_t, CairoDeleter>;

// Smallest and largest value of an axis, both on a tick.
struct Axis {
  double low = std::numeric_limits<double>::max();
  double high = 0;
  double base = 10;

  void cover(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void round_out() {
    low = std::pow(base, std::floor(std::log(low) / std::log(base) + 1e-9));
    high = std::pow(base, std::ceil(std::log(high) / std::log(base) - 1e-9));
    if (high <= low) high = low * base;
  }
  double share(double value) const { return std::log(value / low) / std::log(high / low); }
};

// 1024 as "1K", 1048576 as "1M": lengths; other numbers as they are.
std::string length_text(double value) {
  if (value >= 1048576) return fmt::format("{:g}M", value / 1048576);
  return value >= 1024 ? fmt::format("{:g}K", value / 1024) : fmt::format("{:g}", value);
}

std::string count_text(double value) {
  return value >= 1e6 ? fmt::format("{:g}M", value / 1e6) : fmt::format("{:.0f}", value);
}

class Drawing {
 public:
  Drawing(cairo_t* context, const Plot& plot) : c_(context), plot_(plot) {
    x_.base = 2;
    for (const PlotSeries& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        x_.cover(x);
        y_.cover(y);
      }
    }
    x_.round_out();
    y_.round_out();
  }

  void draw() {
    set(Colour{1, 1, 1});
    cairo_paint(c_);
    cairo_select_font_face(c_, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c_, kTextSize);
    draw_grid();
    for (size_t i = 0; i < plot_.series.size(); ++i) draw_line(plot_.series[i], colour(i));
    draw_labels();
    draw_titles();
  }

 private:
  static Colour colour(size_t i) { return kLines[i % std::size(kLines)]; }
  double x_of(double value) const { return kLeft + x_.share(value) * (kWidth - kLeft - kRight); }
  double y_of(double value) const { return kHeight - kBottom - y_.share(value) * (kHeight - kTop - kBottom); }
  void set(const Colour& colour) { cairo_set_source_rgb(c_, colour.red, colour.green, colour.blue); }

  void stroke(double x0, double y0, double x1, double y1) {
    cairo_move_to(c_, x0, y0);
    cairo_line_to(c_, x1, y1);
    cairo_stroke(c_);
  }

  // `anchor`: which share of the text lies left of x.
  void write(const std::string& text, double x, double y, double anchor) {
    cairo_text_extents_t extents;
    cairo_text_extents(c_, text.c_str(), &extents);
    cairo_move_to(c_, x - anchor * extents.x_advance, y);
    cairo_show_text(c_, text.c_str());
  }

  void draw_grid() {
    cairo_set_line_width(c_, 1);
    for (double x = x_.low; x <= x_.high * 1.001; x *= x_.base) {
      set(kGrid);
      stroke(x_of(x), kTop, x_of(x), kHeight - kBottom);
      set(kInk);
      write(length_text(x), x_of(x), kHeight - kBottom + 19, 0.5);
    }
    for (double y = y_.low; y <= y_.high * 1.001; y *= y_.base) {
      set(kGrid);
      stroke(kLeft, y_of(y), kWidth - kRight, y_of(y));
      set(kInk);
      write(count_text(y), kLeft - 9, y_of(y) + kTextSize / 3, 1);
    }
  }

  void draw_line(const PlotSeries& series, const Colour& colour) {
    set(colour);
    cairo_set_line_width(c_, 2.2);
    const double dashes[] = {7, 5};
    if (series.dashed) cairo_set_dash(c_, dashes, std::size(dashes), 0);
    cairo_new_path(c_);  // the last text left a point behind
    for (const auto& [x, y] : series.points) cairo_line_to(c_, x_of(x), y_of(y));
    cairo_stroke(c_);
    cairo_set_dash(c_, nullptr, 0, 0);
    for (const auto& [x, y] : series.points) {
      cairo_arc(c_, x_of(x), y_of(y), 3, 0, 2 * std::numbers::pi);
      cairo_fill(c_);
    }
  }

  // At the lines' ends, from the highest down, none over another.
  void draw_labels() {
    std::vector<size_t> order;
    for (size_t i = 0; i < plot_.series.size(); ++i) {
      if (!plot_.series[i].points.empty()) order.push_back(i);
    }
    const auto end_y = [&](size_t i) { return y_of(plot_.series[i].points.back().second); };
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return end_y(a) < end_y(b); });
    std::vector<double> places;
    for (const size_t i : order) {
      places.push_back(places.empty() ? end_y(i) : std::max(end_y(i), places.back() + kLabelStep));
    }
    // Up again as far as the last one left the picture.
    const double over = places.empty() ? 0 : std::max(0.0, places.back() - (kHeight - kBottom));
    for (size_t k = 0; k < order.size(); ++k) {
      const PlotSeries& series = plot_.series[order[k]];
      const double y = places[k] - over, x = kWidth - kRight + 22;
      set(colour(order[k]));
      cairo_set_line_width(c_, 2);
      stroke(x_of(series.points.back().first) + 5, end_y(order[k]), x - 5, y);
      set(kInk);  // a text in a light colour is hard to read
      write(series.label, x, y + kTextSize / 3, 0);
    }
  }

  void draw_titles() {
    set(kInk);
    write(plot_.x_label, (kLeft + kWidth - kRight) / 2, kHeight - 16, 0.5);
    cairo_save(c_);
    cairo_translate(c_, 20, (kTop + kHeight - kBottom) / 2);
    cairo_rotate(c_, -std::numbers::pi / 2);
    write(plot_.y_label, 0, 0, 0.5);
    cairo_restore(c_);
    cairo_set_font_size(c_, kTextSize + 2);
    write(plot_.title, kLeft, kTop - 22, 0);
  }

  cairo_t* c_;
  const Plot& plot_;
  Axis x_, y_;
};

cairo_status_t append_bytes(void* bytes, const unsigned char* data, unsigned int size) {
  static_cast<std::string*>(bytes)->append(reinterpret_cast<const char*>(data), size);
  return CAIRO_STATUS_SUCCESS;
}

void check(cairo_status_t status) {
  if (status == CAIRO_STATUS_SUCCESS) return;
  throw_error(ErrorCode::kResourceExhausted, "the plot cannot be drawn: {}", cairo_status_to_string(status));
}

void draw_on(cairo_surface_t* surface, const Plot& plot, double scale) {
  const Context context(cairo_create(surface));
  cairo_scale(context.get(), scale, scale);
  Drawing(context.get(), plot).draw();
  check(cairo_status(context.get()));
}

std::string svg_bytes(const Plot& plot) {
  std::string bytes;
  const Surface surface(cairo_svg_surface_create_for_stream(append_bytes, &bytes, kWidth, kHeight));
  draw_on(surface.get(), plot, 1);
  cairo_surface_finish(surface.get());
  check(cairo_surface_status(surface.get()));
  return bytes;
}

std::string png_bytes(const Plot& plot) {
  constexpr int kScale = 2;  // for dense screens
  std::string bytes;
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(kWidth) * kScale,
                                                   static_cast<int>(kHeight) * kScale));
  draw_on(surface.get(), plot, kScale);
  check(cairo_surface_write_to_png_stream(surface.get(), append_bytes, &bytes));
  return bytes;
}

}  // namespace

void write_plot(const Plot& plot, const std::filesystem::path& path) {
  if (std::ranges::all_of(plot.series, [](const PlotSeries& series) { return series.points.empty(); })) {
    throw_usage("nothing to plot: not one sequence fits; give a larger budget or shorter contexts");
  }
  write_file_atomic(path, path.extension() == ".png" ? png_bytes(plot) : svg_bytes(plot));
}

}  // namespace asymkv::app
