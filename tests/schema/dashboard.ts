// The type of our dashboards, built from the types that Grafana publishes. The test appends each dashboard as
// a literal of this type, so that names that Grafana does not know are errors.
import type { AnnotationQuery, Dashboard, DataQuery, Panel, RowPanel } from '@grafana/schema';
import type {
  FieldConfig as HeatmapField,
  Options as Heatmap,
} from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type {
  FieldConfig as StateTimelineField,
  Options as StateTimeline,
} from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type {
  FieldConfig as TableField,
  Options as Table,
} from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type {
  FieldConfig as TimeSeriesField,
  Options as TimeSeries,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// In JSON, the values of an enum are plain strings.
type Plain<T> = T extends string
  ? `${T}`
  : T extends (infer U)[]
    ? Plain<U>[]
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

// Grafana's type Panel allows any options and custom fields; this type allows only those of one panel type.
type Of<Type extends string, Options, Field> = Omit<Panel<Options, Field>, 'type' | 'options'> & {
  type: Type;
  options: Options;
};

type AnyPanel = Plain<
  | Of<'heatmap', Heatmap, HeatmapField>
  | Of<'stat', Stat, Record<string, never>>
  | Of<'state-timeline', StateTimeline, StateTimelineField>
  | Of<'table', Table, TableField>
  | Of<'timeseries', TimeSeries, TimeSeriesField>
>;

type Row = Plain<Omit<RowPanel, 'panels'>> & { panels: AnyPanel[] };

// The types describe only what all data sources have in common. The other fields are those that Prometheus' annotations
// have in grafana/packages/grafana-prometheus/src/annotations.ts.
type Annotation = AnnotationQuery<DataQuery & { expr: string; interval: string }> & {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  useValueForTime: boolean;
};

type Ours = Plain<Omit<Dashboard, 'panels' | 'annotations'>> & {
  annotations: { list: Plain<Annotation>[] };
  panels: (AnyPanel | Row)[];
};

